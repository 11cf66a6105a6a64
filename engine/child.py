"""The supervisor's side of the bargain, as a child process keeps it.

A child gets its settings on stdin as one length-prefixed MessagePack frame, then stdin stays open as long as the
supervisor lives: its end of file is the order to vanish. Over the status pipe (a file descriptor named in the
settings) the child says Started or StartFailed once, then Beat from its own main loop.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import logging
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from engine.config import EngineConfig
from engine.logs import PatientHandler
from engine.messages import ModelInfo

S = TypeVar("S", bound=msgspec.Struct)

BEAT_INTERVAL = 0.5
MAX_FRAME_BYTES = 1 << 20
_PR_SET_PDEATHSIG = 1
_LENGTH = struct.Struct("<I")


class ModelProcessSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model process needs. model_kind: as in engine.model_store.resolve.ResolvedModel. rank: which of
    ``config.tp_size`` it is; rank 0 alone reads ``inbox`` and writes to ``outbox``. rendezvous: where they meet."""

    config: EngineConfig
    model_path: str
    model_kind: str
    served_name: str
    inbox: str
    outbox: str
    status_fd: int
    parent_pid: int
    rank: int = 0
    rendezvous: str = ""


class DetokenizerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the text process needs. outbox: to the API process; aborts: to the scheduler."""

    tokenizer_path: str
    inbox: str
    outbox: str
    aborts: str
    status_fd: int
    parent_pid: int
    log_level: str = "info"


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    """Ready to serve. ``model`` comes from the model process only."""

    model: ModelInfo | None = None


class StartFailed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    reason: str


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag="beat"):
    """The main loop went round. step: the scheduler's step counter (0 in the text process)."""

    step: int = 0
    dropped: int = 0


ChildStatus = Started | StartFailed | Beat


def frame(message: msgspec.Struct) -> bytes:
    """Length-prefixed MessagePack, the form of stdin and status pipe alike."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Frames out of a byte stream. Raises ValueError where the stream cannot be one of frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._decoder = msgspec.msgpack.Decoder(ChildStatus)

    def feed(self, data: bytes) -> list[ChildStatus]:
        self._buffer += data
        messages: list[ChildStatus] = []
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise ValueError("status frame too large")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(self._decoder.decode(self._buffer[_LENGTH.size : end]))
            del self._buffer[:end]
        return messages


def read_spec(kind: type[S]) -> S:
    """The settings from stdin, then the pact with the supervisor: die with it, ignore the terminal's Ctrl-C."""
    stdin = sys.stdin.buffer
    (length,) = _LENGTH.unpack(stdin.read(_LENGTH.size))
    spec = msgspec.msgpack.decode(stdin.read(length), type=kind)
    _die_with(getattr(spec, "parent_pid", 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the supervisor decides when: it closes stdin or kills
    return spec


def _die_with(parent: int) -> None:
    """Two nets: the kernel's parent-death signal, and a thread that waits for stdin to end."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_vanish_at_eof, name="parent-watch", daemon=True).start()


def _vanish_at_eof() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


class StatusPipe:
    """Writes status frames without ever blocking the loop that beats."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._last_beat = -BEAT_INTERVAL
        fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)

    def started(self, model: ModelInfo | None = None) -> None:
        self._write(Started(model=model))
        os.set_blocking(self._fd, False)

    def failed(self, reason: str) -> None:
        self._write(StartFailed(reason=reason[:2000]))

    def beat(self, step: int = 0, dropped: int = 0) -> bool:
        """Say so if it is time to. True where a beat was due."""
        now = time.monotonic()
        if now - self._last_beat < BEAT_INTERVAL:
            return False
        self._last_beat = now
        with contextlib.suppress(BlockingIOError):  # nobody reads; the pipe's end matters, not its filling
            self._write(Beat(step=step, dropped=dropped))
        return True

    def _write(self, message: ChildStatus) -> None:
        os.write(self._fd, frame(message))  # below PIPE_BUF or blocking, so never torn


@contextlib.contextmanager
def starting(status: StatusPipe) -> Iterator[None]:
    """What a child does before it is ready. A failure is told to the supervisor in one line and ends the process."""
    try:
        yield
    except Exception as error:
        logging.getLogger(__name__).debug("could not start", exc_info=True)
        status.failed(one_line(error))
        sys.exit(1)
    gc.collect()
    gc.freeze()


def setup_logging(name: str, level: str) -> None:
    """Log lines of a child on stderr, under its name."""
    number = logging.getLevelNamesMapping().get(level.upper(), logging.INFO)
    handler = PatientHandler()
    handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)s [{name}] %(message)s"))
    logging.basicConfig(level=number, handlers=[handler], force=True)


def one_line(error: BaseException) -> str:
    """An exception as one line for a person."""
    if isinstance(error, MemoryError):
        return "there is not enough memory."
    text = " ".join(str(error).split())
    return text if text else type(error).__name__
