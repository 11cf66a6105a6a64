"""Checks client grammars before they reach the engine, off the event loop, in a process that can be killed."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
from collections import OrderedDict

import msgspec

from engine.grammar.interface import GrammarError
from engine.grammar.source import check_limits
from engine.messages import GrammarSpec

TIMEOUT_SECONDS = 2.0
START_TIMEOUT_SECONDS = 30.0
CACHE_ENTRIES = 4096
"""Verdicts are a hash and a short text each, so the cache stays under a few MB whatever clients send."""
LINE_LIMIT = 1 << 20
TOO_SLOW, TOO_LARGE = "The grammar took longer than", "The grammar is too large or too deeply nested to compile."
"""How the messages begin that cost a worker."""
KILLED = "The grammar could not be checked: the check was killed."
"""A worker never does that to itself: a grammar that is too much for it ends it by SIGABRT or SIGSEGV."""


class CheckFailed(Exception):
    """The check could not be made, which says nothing of the grammar."""


class GrammarChecker:
    """``await check(spec)`` raises GrammarError for a grammar that the engine could not compile in time, CheckFailed
    where somebody kills one worker after another.

    One worker process, started on first use, one grammar at a time; killed and started anew where it is late
    or dies. Verdicts are remembered by hash.
    """

    def __init__(self, timeout: float = TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
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
        try:
            process = await self._running()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(payload + b"\n")
            await process.stdin.drain()
            line = await asyncio.wait_for(process.stdout.readline(), self._timeout)
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
        environment = {
            name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        environment["RUST_BACKTRACE"] = "0"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "engine.grammar.check_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            limit=LINE_LIMIT,
            env=environment,
        )
        self._process = process
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_SECONDS)
        return process
