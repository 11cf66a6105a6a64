"""Checks client grammars before they reach the engine, off the event loop, in a process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import math
import os
import signal
from collections import OrderedDict

import msgspec

from engine.grammar.interface import GrammarError
from engine.grammar.source import check_limits
from engine.messages import GrammarSpec
from engine.platform.modules import import_path, module_command
from engine.platform.process_stat import process_stat

TIMEOUT_SECONDS = 2.0
START_TIMEOUT_SECONDS = 30.0
STARVED_TIMEOUTS = 5
"""So many of them pass for a worker that gets no processor time before the check is given up."""
CACHE_ENTRIES = 4096
"""Verdicts are a hash and a short text each, so the cache stays under a few MB whatever clients send."""
LINE_LIMIT = 1 << 20
TOO_SLOW, TOO_LARGE = "The grammar took longer than", "The grammar is too large or too deeply nested to compile."
"""How the messages begin that cost a worker."""
KILLED = "The grammar could not be checked: the check was killed."
"""A worker never does that to itself: a grammar that is too much for it ends it by SIGABRT or SIGSEGV."""
NOT_STARTED = "The grammar could not be checked: the check did not start."
STARVED = "The grammar could not be checked: the machine is too busy."


class CheckFailed(Exception):
    """The check could not be made, which says nothing of the grammar."""


class GrammarChecker:
    """``await check(spec)`` raises GrammarError for a grammar that the engine could not compile in time, CheckFailed
    where nobody could say: somebody kills one worker after another, none starts, or they get no processor time.

    One worker process, started on first use, one grammar at a time; killed and started anew where it is late
    or dies. Verdicts are remembered by hash.
    """

    def __init__(self) -> None:
        self._timeout = TIMEOUT_SECONDS
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()

    async def check(self, spec: GrammarSpec) -> None:
        """Return where ``spec`` compiles; raise GrammarError where it does not, CheckFailed where nobody can say."""
        payload = msgspec.json.encode(spec)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        if key not in self._verdicts:
            check_limits(spec)
            async with self._lock:
                verdict = await self._ask(payload)
                if verdict is KILLED:
                    verdict = await self._ask(payload)
            if verdict is KILLED:
                raise CheckFailed(KILLED)
            self._verdicts[key] = verdict
            if len(self._verdicts) > CACHE_ENTRIES:
                self._verdicts.popitem(last=False)
        else:
            self._verdicts.move_to_end(key)
        error = self._verdicts[key]
        if error is not None:
            raise GrammarError(error)

    async def close(self) -> None:
        """Stop the worker; safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()

    async def _ask(self, payload: bytes) -> str | None:
        process = await self._running()
        try:
            line = await self._line(process, payload)
        except TimeoutError:
            await self.close()
            return f"{TOO_SLOW} {self._timeout:g} s to compile."
        except (ConnectionError, OSError):
            line = b""
        except asyncio.CancelledError:
            await self.close()
            raise
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
                if (await asyncio.wait({line}, timeout=self._timeout))[0]:
                    return line.result()
                if not cpu_seconds(process.pid) - begun < self._timeout / 2:
                    raise TimeoutError
        finally:
            line.cancel()
        await self.close()
        raise CheckFailed(STARVED)

    async def _end(self) -> str:
        """What the end of the worker says of the grammar: nothing where somebody else has killed it."""
        process = self._process
        if process is not None:
            with contextlib.suppress(TimeoutError):  # its end of the pipe is closed already
                await asyncio.wait_for(process.wait(), self._timeout)
        killed = process is not None and process.returncode == -signal.SIGKILL
        await self.close()
        return KILLED if killed else TOO_LARGE

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            process = self._process = await _start()
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
