"""The life of a server process around its engine: start, serve, drain on the first signal, end on the second."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from engine.launch import Engine

logger = logging.getLogger(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 2.0
"""Seconds that a server gets to write its last bytes after every request has ended."""

Serve = Callable[[asyncio.Event], Awaitable[None]]


class EngineFailed(RuntimeError):
    """The engine has given up while serving; the message is one line for a person."""


class StopSignals:
    """SIGINT, SIGTERM and the end of the terminal as two events: the first one and the second one. What nohup has made
    to be ignored stays ignored."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handled = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in self._handled:
            self._loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

    def close(self) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)


async def run_until_signal(serve: Serve) -> None:
    """``serve(stop)``, with ``stop`` set by the first signal: for a process without requests of its own."""
    signals = StopSignals()
    try:
        await serve(signals.first)
    finally:
        signals.close()


async def run(engine: Engine, serve: Serve, *, drain_timeout: float = 30.0) -> None:
    """Start ``engine``, then ``serve(stop)`` until a signal; leave no process and no socket file.

    ``serve`` serves until ``stop`` is set, then finishes the answers in hand and returns. The first signal
    refuses new requests and lets those inside finish for ``drain_timeout`` seconds; the second one ends them at
    once with error events. Raises EngineStartError where the engine cannot start, EngineFailed where it has
    given up for good, and whatever ``serve`` raises.
    """
    signals = StopSignals()
    try:
        if await _started(engine, signals):
            await _serve(engine, serve, signals, drain_timeout)
    finally:
        await engine.stop()
        signals.close()


async def _started(engine: Engine, signals: StopSignals) -> bool:
    """False where a signal came before the engine was ready."""
    starting = asyncio.create_task(engine.start())
    await first_done(starting, signals.first.wait())
    if not starting.done():
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        return False
    await starting
    return True


async def _serve(engine: Engine, serve: Serve, signals: StopSignals, drain_timeout: float) -> None:
    stop = asyncio.Event()
    serving: asyncio.Future[None] = asyncio.ensure_future(serve(stop))
    failure = asyncio.create_task(engine.failure())
    try:
        await first_done(serving, failure, signals.first.wait())
        if not serving.done() and not failure.done():
            logger.info("draining: %d requests to finish", engine.manager.num_requests)
            await first_done(engine.drain(drain_timeout), failure, serving, signals.second.wait())
            engine.end_requests()
        stop.set()
        await first_done(serving, asyncio.sleep(GRACE) if signals.second.is_set() else signals.second.wait())
        if serving.done():
            await serving
        if failure.done():
            raise EngineFailed(failure.result())
    finally:
        for task in (serving, failure):
            task.cancel()
        await asyncio.gather(serving, failure, return_exceptions=True)


async def first_done(*waits: Awaitable[Any]) -> None:
    """Wait until one is done. Coroutines among them are cancelled then; tasks and futures go on."""
    own = [asyncio.ensure_future(wait) for wait in waits if not isinstance(wait, asyncio.Future)]
    given = [wait for wait in waits if isinstance(wait, asyncio.Future)]
    try:
        await asyncio.wait([*own, *given], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in own:
            task.cancel()
        await asyncio.gather(*own, return_exceptions=True)
