"""The log of the server process: one handler on stderr, which no request waits for."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence

from engine.logs import PatientHandler
from engine.messages import GenerateReqInput

ACCESS_LOG = "callgate.access"
PROMPT_LOG = "callgate.prompts"
"""The loggers whose messages are JSON by themselves."""


class _LineFormatter(logging.Formatter):
    """What is JSON goes out bare."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage() if record.name in (ACCESS_LOG, PROMPT_LOG) else super().format(record)


def log_prompts(request_id: str, requests: Sequence[GenerateReqInput]) -> None:
    """One line of ASCII JSON per prompt: its text as the tokenizer gets it, or its token ids."""
    for request in requests:
        prompt: object = request.input_ids
        if request.text is not None:
            prompt = request.text.replace(request.guard, "") if request.guard else request.text
        logging.getLogger(PROMPT_LOG).info(json.dumps({"request_id": request_id, "prompt": prompt}))


def set_up_logging(level: str) -> None:
    """``level``: a name as on the command line."""
    number = logging.getLevelNamesMapping()[level.upper()]
    handler = PatientHandler()
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)
    for noisy in ("uvicorn.error", "httpx", "httpcore"):
        logging.getLogger(noisy).setLevel(max(number, logging.WARNING))
