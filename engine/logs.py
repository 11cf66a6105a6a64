"""Log lines that never hold up the process that writes them.

Standard error may be a pipe whose reader has stopped, a full disk or a terminal on hold. Lines therefore go through
a bounded queue to a thread of their own; what does not fit is dropped, counted, and told of once lines flow again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections import deque

MAX_BYTES = 1 << 20
"""Lines that may wait for a reader."""
FLUSH_SECONDS = 1.0
"""How long the end of a process may wait for them."""


class PatientHandler(logging.Handler):
    """Writes to a file descriptor, in order, from a daemon thread. ``emit`` never blocks and never raises for I/O."""

    def __init__(self, fd: int = 2, max_bytes: int = MAX_BYTES) -> None:
        super().__init__()
        self._fd = fd
        self._max_bytes = max_bytes
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._dropped = 0
        self._change = threading.Condition(threading.Lock())
        threading.Thread(target=self._write, name="log-writer", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        except Exception:
            self.handleError(record)
            return
        with self._change:
            if self._waiting + len(line) > self._max_bytes:
                self._dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._change.notify_all()

    def flush(self) -> None:
        """Wait until everything is written, at most FLUSH_SECONDS."""
        deadline = time.monotonic() + FLUSH_SECONDS
        with self._change:
            self._change.wait_for(lambda: not self._waiting, max(0.0, deadline - time.monotonic()))

    def _write(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._lines)
                data = b"".join(self._lines)
                self._lines.clear()
            with contextlib.suppress(OSError):  # nobody reads any more, or the disk is full: the lines are lost
                self._write_all(data)
            with self._change:
                self._waiting -= len(data)
                if self._dropped and not self._lines:
                    told = b"%d log lines were dropped because nobody read them\n" % self._dropped
                    self._dropped = 0
                    self._lines.append(told)
                    self._waiting += len(told)
                self._change.notify_all()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]


def open_standard_streams() -> None:
    """Give descriptors 0 to 2 a meaning where a parent has closed them, so that no socket gets one of them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
