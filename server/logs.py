"""The log of the server process: one handler on stderr, which no request waits for."""

from __future__ import annotations

import logging

from engine.logs import PatientHandler

ACCESS_LOG = "callgate.access"
"""The logger whose messages are JSON by themselves."""


class _LineFormatter(logging.Formatter):
    """The access log goes out bare."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name == ACCESS_LOG else super().format(record)


def set_up_logging(level: str) -> None:
    """``level``: a name as on the command line."""
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = PatientHandler()
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
