"""Checks client grammars before they reach the engine, off the event loop, in processes that can be killed."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import msgspec

from engine.grammar.check_process import KILLED, STARVED, TOO_LARGE, CheckFailed, CheckWorker
from engine.grammar.interface import GrammarError
from engine.grammar.source import check_limits
from engine.messages import GrammarSpec

__all__ = ["KILLED", "TOO_LARGE", "TOO_SLOW", "CheckFailed", "GrammarChecker"]

TIMEOUT_SECONDS = 2.0
QUICK_SECONDS = 0.3
"""More than nearly all grammars take. One that takes longer begins anew behind the others that do."""
CACHE_ENTRIES = 4096
"""Verdicts are a hash and a short text each, so the cache stays under a few MB whatever clients send."""
TOO_SLOW = "The grammar took longer than"
"""How the message begins that costs a worker (TOO_LARGE is the other one)."""


class GrammarChecker:
    """``await check(spec)`` raises GrammarError for a grammar that the engine could not compile in time, CheckFailed
    where nobody could say: somebody kills one worker after another, none starts, or they get no processor time.

    Two queues with a worker each: slow grammars wait for one another, and hold up the others for QUICK_SECONDS only.
    Verdicts are remembered by hash, and whoever waits for one that another request asks for shares it.
    """

    def __init__(self) -> None:
        self.quick = CheckWorker(QUICK_SECONDS)
        self.patient = CheckWorker(TIMEOUT_SECONDS)
        self._verdicts: OrderedDict[bytes, str | None] = OrderedDict()
        self._slow: dict[bytes, None] = {}
        """Grammars that were too much for the quick worker and are not judged yet."""

    async def check(self, spec: GrammarSpec) -> None:
        """Return where ``spec`` compiles; raise GrammarError where it does not, CheckFailed where nobody can say."""
        payload = msgspec.json.encode(spec)
        key = hashlib.blake2b(payload, digest_size=16).digest()
        if key not in self._verdicts:
            check_limits(spec)
            await self._judge(key, payload)
        self._verdicts.move_to_end(key)
        error = self._verdicts[key]
        if error is not None:
            raise GrammarError(error)

    async def close(self) -> None:
        """Stop the workers; safe to call twice."""
        await self.quick.close()
        await self.patient.close()

    async def _judge(self, key: bytes, payload: bytes) -> None:
        async with self.quick.turn:
            if key not in self._verdicts and key not in self._slow:
                await self._judge_quickly(key, payload)
        if key in self._verdicts:
            return
        async with self.patient.turn:
            if key not in self._verdicts:
                await self._judge_patiently(key, payload)

    async def _judge_quickly(self, key: bytes, payload: bytes) -> None:
        try:
            self._remember(key, await self.quick.ask(payload))
        except TimeoutError:
            self._slow[key] = None
        except CheckFailed as error:
            if str(error) != STARVED:
                raise
            self._slow[key] = None

    async def _judge_patiently(self, key: bytes, payload: bytes) -> None:
        try:
            self._remember(key, await self.patient.ask(payload))
        except TimeoutError:
            self._remember(key, f"{TOO_SLOW} {self.patient.timeout:g} s to compile.")
        finally:
            self._slow.pop(key, None)
            await self.patient.close()  # it is seldom needed, and holds tens of megabytes

    def _remember(self, key: bytes, verdict: str | None) -> None:
        self._verdicts[key] = verdict
        if len(self._verdicts) > CACHE_ENTRIES:
            self._verdicts.popitem(last=False)
