"""One process that compiles client grammars and can be killed: a crash or a hang there is an answer here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal

from engine.platform.modules import import_path, module_command
from engine.platform.process_stat import process_stat

START_TIMEOUT_SECONDS = 30.0
STARVED_TIMEOUTS = 5
"""So many of them pass for a worker that gets no processor time before the check is given up."""
LINE_LIMIT = 1 << 20
TOO_LARGE = "The grammar is too large or too deeply nested to compile."
KILLED = "The grammar could not be checked: the check was killed."
"""A worker never does that to itself: a grammar that is too much for it ends it by SIGABRT or SIGSEGV."""
NOT_STARTED = "The grammar could not be checked: the check did not start."
STARVED = "The grammar could not be checked: the machine is too busy."


class CheckFailed(Exception):
    """The check could not be made, which says nothing of the grammar."""


class CheckWorker:
    """A worker process (engine.grammar.check_worker), started on first use, killed and started anew where it is late or
    dies. One grammar at a time: whoever asks holds ``turn``."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.turn = asyncio.Lock()
        self.process: asyncio.subprocess.Process | None = None

    async def ask(self, payload: bytes) -> str | None:
        """What is wrong with a grammar, None for nothing. Raises TimeoutError where it takes longer than ``timeout``
        seconds, CheckFailed where nobody can say."""
        for _ in range(2):
            verdict = await self._ask(payload)
            if verdict is not KILLED:
                return verdict
        raise CheckFailed(KILLED)

    async def close(self) -> None:
        """Stop the worker; safe to call twice."""
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _ask(self, payload: bytes) -> str | None:
        process = await self.running()
        try:
            line = await self._line(process, payload)
        except (TimeoutError, asyncio.CancelledError):
            await self.close()
            raise
        except (ConnectionError, OSError):
            line = b""
        if not line:
            return await self._end()
        error = json.loads(line)["error"]
        return None if error is None else str(error)

    async def _line(self, process: asyncio.subprocess.Process, payload: bytes) -> bytes:
        """The worker's answer. Raises TimeoutError where it computes for too long, CheckFailed where it cannot."""
        assert process.stdin is not None
        assert process.stdout is not None
        begun = cpu_seconds(process.pid)
        process.stdin.write(payload + b"\n")
        await process.stdin.drain()
        line = asyncio.create_task(process.stdout.readline())
        try:
            for _ in range(STARVED_TIMEOUTS):
                if (await asyncio.wait({line}, timeout=self.timeout))[0]:
                    return line.result()
                if not cpu_seconds(process.pid) - begun < self.timeout / 2:
                    raise TimeoutError
        finally:
            line.cancel()
        await self.close()
        raise CheckFailed(STARVED)

    async def _end(self) -> str:
        """What the end of the worker says of the grammar: nothing where somebody else has killed it."""
        process = self.process
        if process is not None:
            with contextlib.suppress(TimeoutError):  # its end of the pipe is closed already
                await asyncio.wait_for(process.wait(), self.timeout)
        killed = process is not None and process.returncode == -signal.SIGKILL
        await self.close()
        return KILLED if killed else TOO_LARGE

    async def running(self) -> asyncio.subprocess.Process:
        """The process, started where there is none. Raises CheckFailed."""
        if self.process is not None and self.process.returncode is None:
            return self.process
        try:
            process = self.process = await _start()
            assert process.stdout is not None
            ready = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_SECONDS)
        except (OSError, TimeoutError):
            ready = b""
        except asyncio.CancelledError:
            await self.close()
            raise
        if not ready:
            await self.close()
            raise CheckFailed(NOT_STARTED)
        return process


async def _start() -> asyncio.subprocess.Process:
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment |= {"PYTHONPATH": import_path()}
    environment |= {"RUST_BACKTRACE": "0", "OPENBLAS_NUM_THREADS": "1"}  # numpy is not asked for any product
    return await asyncio.create_subprocess_exec(
        *module_command("engine.grammar.check_worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=LINE_LIMIT,
        env=environment,
    )


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has had; NaN where nobody can tell."""
    try:
        return process_stat(pid)[1] / os.sysconf("SC_CLK_TCK")
    except OSError:
        return math.nan
