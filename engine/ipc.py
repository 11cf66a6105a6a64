"""Sockets between the processes: msgspec MessagePack over ZMQ PUSH/PULL in a private directory.

Whatever arrives is decoded into typed structs inside a try: a frame that is no message is dropped and counted,
and never ends a process. There is no other way in: no pickle, no TCP.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from engine.messages import BatchStrOut, BatchTokenIDOut

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_MESSAGE_BYTES = 64 << 20
RECEIVE_BYTES = 256 << 10
"""Read at a time, beyond the first frame: what 128 choices of a long prompt bring takes seconds to read and to admit,
and whoever reads has others to serve meanwhile."""
HIGH_WATER_MARK = 100_000
MAX_SOCKET_PATH = 107
"""sockaddr_un holds 108 bytes, the last of them 0."""
MAX_SOCKET_NAME = len("/model-99999.sock")
SEND_TIMEOUT = 30.0


class PipeBlocked(RuntimeError):
    """The process at the other end does not read any more."""


def make_run_dir(parent: str = "") -> Path:
    """A new 0700 directory for one server's sockets, under ``parent``, else under the first that takes one: the user's
    runtime directory, those for temporary files, shared memory (all that a container without a writable disk has).

    Raises OSError where none can be made, or where ``parent`` is so long that no socket path fits.
    """
    if parent:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        return _new_run_dir(parent)
    runtime = (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}")
    temporary = (*(os.environ.get(name, "") for name in ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp", "/dev/shm")
    for base in filter(os.path.isabs, (*runtime, *temporary)):
        with contextlib.suppress(OSError):
            return _new_run_dir(base)
    raise OSError("no writable directory for the sockets: set --run-dir or TMPDIR.")


def _new_run_dir(base: str) -> Path:
    return _fitting(Path(tempfile.mkdtemp(prefix="callgate-", dir=base)))


def _fitting(directory: Path) -> Path:
    if len(os.fsencode(directory)) + MAX_SOCKET_NAME > MAX_SOCKET_PATH:
        directory.rmdir()
        raise OSError(f"the run directory's path is too long for a socket: {directory.parent}")
    return directory


def remove_run_dir(directory: Path) -> None:
    """Remove the sockets and the directory; what is already gone is no error."""
    try:
        for entry in directory.iterdir():
            entry.unlink(missing_ok=True)
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError as error:
        logger.warning("could not remove %s: %s", directory, error.strerror)


class Inbox(Generic[T]):
    """The reading end of one socket file. kind: the messages that come, a union of structs.

    dropped: frames so far that were no message. drained: the last ``receive`` left nothing behind; only then
    will ``fd`` speak up for the next frame.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str, kind: Any) -> None:
        self.dropped = 0
        self.drained = False
        self._decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(kind).decode
        self._path = path
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(f"ipc://{path}")
        os.chmod(path, 0o600)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    @property
    def fd(self) -> int:
        """A file descriptor that becomes readable when frames may wait. It is edge-triggered: receive until
        ``drained``, rubbish included, before waiting for it again."""
        return int(self._socket.getsockopt(zmq.FD))

    def receive(self, timeout: float = 0.0, limit: int = 1024) -> list[T]:
        """The messages among the next ``limit`` frames, RECEIVE_BYTES in all; waits at most ``timeout`` seconds for the
        first one."""
        messages: list[T] = []
        self.drained = False
        room = RECEIVE_BYTES
        if timeout > 0 and not self._poller.poll(int(timeout * 1000)):
            return messages
        for _ in range(limit):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                self.drained = True
                break
            self._append(messages, frames)
            room -= sum(map(len, frames))
            if room <= 0:
                break
        return messages

    def _append(self, messages: list[T], frames: list[bytes]) -> None:
        try:
            (frame,) = frames
            messages.append(self._decode(frame))
        except Exception as error:  # whatever a hostile frame provokes, it is only dropped
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:
                logger.warning("dropped a malformed frame (%s, %d so far)", type(error).__name__, self.dropped)

    def close(self) -> None:
        self._socket.close(0)
        Path(self._path).unlink(missing_ok=True)


class Outbox:
    """The writing end of one socket file. What is not delivered when it closes is dropped."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], path: str, send_timeout: float = SEND_TIMEOUT) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.SNDTIMEO, int(send_timeout * 1000))
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{path}")

    def send(self, message: Any) -> None:
        """Queue one message, a batch of rows that is too large for the reader as several. Raises PipeBlocked where the
        reader has been away for the send timeout, ValueError for a row that is too large by itself."""
        frame = self._encoder.encode(message)
        if len(frame) > MAX_MESSAGE_BYTES:  # the reader would drop it, and everybody's rows with it
            for part in _halves(message):
                self.send(part)
            return
        try:
            self._socket.send(frame)
        except zmq.Again:
            raise PipeBlocked("the next process in the pipe has stopped reading.") from None

    def close(self, linger: float = 0.0) -> None:
        """``linger``: seconds that undelivered messages may still take."""
        self._socket.close(int(linger * 1000))


def _halves(message: Any) -> list[BatchTokenIDOut | BatchStrOut]:
    if not isinstance(message, BatchTokenIDOut | BatchStrOut) or len(message.rows) < 2:
        raise ValueError(f"a message of more than {MAX_MESSAGE_BYTES} bytes")
    middle = len(message.rows) // 2
    return [msgspec.structs.replace(message, rows=rows) for rows in (message.rows[:middle], message.rows[middle:])]
