"""One child process as its parent sees it: started, heard, watched, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

import msgspec

from engine.child import Beat, ChildStatus, FrameReader, Started, StartFailed, frame
from engine.platform.modules import import_path
from engine.platform.process_stat import process_stat

logger = logging.getLogger(__name__)

_SECRET_SUFFIXES = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
KILL_TIMEOUT = 10.0
"""A process that waits for a broken disk or driver may outlive SIGKILL for a while."""
_STOPPED_STATES = "TtZX"


def _environment() -> dict[str, str]:
    """The parent's, without its secrets, and with this package importable from any directory. numpy starts no threads
    for products that nobody asks it for: they spin while the model takes its first steps."""
    env = {name: value for name, value in os.environ.items() if not name.upper().endswith(_SECRET_SUFFIXES)}
    if platform.machine().lower() in ("x86_64", "amd64"):  # on others torch may compute with the same library
        env.setdefault("OPENBLAS_NUM_THREADS", "1")
    env["PYTHONPATH"] = import_path()
    return env


class Child:
    """Started at construction; must be made on a running event loop.

    started: the child's handshake, or its StartFailed. exited: its exit status, negative for a signal.
    ``last_progress`` is when it last beat or used the CPU (see ``check``).
    """

    def __init__(self, name: str, command: Sequence[str], make_spec: Callable[[int], msgspec.Struct]) -> None:
        self.name = name
        self._loop = asyncio.get_running_loop()
        self.started: asyncio.Future[Started | StartFailed] = self._loop.create_future()
        self.exited: asyncio.Future[int] = self._loop.create_future()
        self.last_beat = self.last_progress = time.monotonic()
        self.step = 0
        self.dropped = 0
        self._cpu_ticks = -1
        self._reader = FrameReader()
        self._status, write_end = os.pipe2(os.O_CLOEXEC)
        try:
            self._process = subprocess.Popen(  # a list and no shell
                list(command),
                stdin=subprocess.PIPE,
                pass_fds=(write_end,),
                env=_environment(),
                start_new_session=True,
                bufsize=0,
            )
        except OSError:
            os.close(self._status)
            raise
        finally:
            os.close(write_end)
        self.pid = self._process.pid
        self._pidfd = self._open_pidfd()
        os.set_blocking(self._status, False)
        self._loop.add_reader(self._status, self._read_status)
        self._loop.add_reader(self._pidfd, self._reap)
        with contextlib.suppress(BrokenPipeError):  # it is dead already; ``exited`` will say so
            self._write(frame(make_spec(write_end)))

    def _open_pidfd(self) -> int:
        """Raises OSError, with the process gone, where there is no descriptor left."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:
            os.close(self._status)
            with self._process:  # closes its stdin and waits for its end
                self._process.kill()
            raise

    def kill(self) -> None:
        """SIGKILL, which also ends a stopped process. ``exited`` follows."""
        if not self.exited.done():
            self._process.send_signal(signal.SIGKILL)

    async def end(self) -> None:
        """Kill it and wait until it is gone."""
        self.kill()
        done, _ = await asyncio.wait([self.exited], timeout=KILL_TIMEOUT)
        if not done:
            logger.error("the %s process (%d) does not die; leaving it behind", self.name, self.pid)

    def describe_exit(self) -> str:
        """Why it is gone, in words."""
        code = self.exited.result()
        if code >= 0:
            return f"the {self.name} process ended with status {code}"
        with contextlib.suppress(ValueError):
            name = signal.Signals(-code).name
            hint = " (out of memory?)" if -code == signal.SIGKILL else ""
            return f"the {self.name} process was killed by {name}{hint}"
        return f"the {self.name} process was killed by signal {-code}"

    def check(self, now: float) -> float:
        """Seconds for which the child has neither beaten nor computed.

        A long step keeps the loop from beating, but it uses the CPU or waits for the disk; a stopped or
        deadlocked process does neither.
        """
        state, ticks = _cpu_state(self.pid)
        if (ticks != self._cpu_ticks and state not in _STOPPED_STATES) or state == "D":
            self._cpu_ticks = ticks
            self.last_progress = now
        self.last_progress = max(self.last_progress, self.last_beat)
        return now - self.last_progress

    def excuse(self, seconds: float) -> None:
        """So long nobody has looked: that does not count against the child."""
        self.last_beat += seconds
        self.last_progress += seconds

    def _write(self, data: bytes) -> None:
        stdin = self._process.stdin
        if stdin is None:
            raise RuntimeError("the child has no stdin")
        stdin.write(data)

    def _read_status(self) -> None:
        try:
            data = os.read(self._status, 1 << 16)
            messages = self._reader.feed(data) if data else []
        except BlockingIOError:
            return
        except (OSError, ValueError, msgspec.MsgspecError):
            data, messages = b"", []
        for message in messages:
            self._on_status(message)
        if not data:
            self._close_status()

    def _on_status(self, message: ChildStatus) -> None:
        self.last_beat = time.monotonic()
        if isinstance(message, Beat):
            self.step = message.step
            self.dropped = message.dropped
        elif not self.started.done():
            self.started.set_result(message)

    def _close_status(self) -> None:
        if self._status >= 0:
            self._loop.remove_reader(self._status)
            os.close(self._status)
            self._status = -1

    def _reap(self) -> None:
        code = self._process.poll()
        if code is None:
            return
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        if self._status >= 0:
            self._read_status()  # its last words
        self._close_status()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if not self.exited.done():
            self.exited.set_result(code)


def _cpu_state(pid: int) -> tuple[str, int]:
    """(state letter, CPU ticks used so far) of a process; ("X", 0) where it is gone, ("D", 0) where nobody can tell."""
    try:
        return process_stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    except OSError:  # no descriptor left here: that says nothing about the child
        return "D", 0
