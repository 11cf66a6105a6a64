from __future__ import annotations

import asyncio
import os
import signal

import pytest

from engine.launch import EngineStartError
from engine.shutdown import EngineFailed, StopSignals, run


class FakeEngine:
    """Records what is asked of it; ``drained`` and ``failed`` are decided by the test."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.drained = asyncio.Event()
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.manager = self
        self.num_requests = 0
        self.start_error: Exception | None = None
        self.start_seconds = 0.0

    async def start(self) -> None:
        self.calls.append("start")
        if self.start_error:
            raise self.start_error
        await asyncio.sleep(self.start_seconds)

    async def stop(self) -> None:
        self.calls.append("stop")

    async def drain(self, seconds: float) -> bool:
        self.calls.append(f"drain {seconds}")
        try:
            await asyncio.wait_for(self.drained.wait(), seconds)
        except TimeoutError:
            return False
        return True

    def end_requests(self) -> None:
        self.calls.append("end")

    async def failure(self) -> str:
        return await asyncio.shield(self.failed)


@pytest.fixture
async def engine():
    return FakeEngine()


def kill_soon(number: int = signal.SIGTERM, delay: float = 0.02) -> None:
    asyncio.get_running_loop().call_later(delay, os.kill, os.getpid(), number)


async def until_stopped(stop: asyncio.Event) -> None:
    await stop.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_the_first_signal_drains_then_stops(engine, number):
    kill_soon(number)
    engine.drained.set()
    await run(engine, until_stopped, drain_timeout=7)
    assert engine.calls == ["start", "drain 7", "end", "stop"]


async def test_the_second_signal_does_not_wait_for_the_drain(engine):
    kill_soon()
    kill_soon(delay=0.1)
    await asyncio.wait_for(run(engine, until_stopped), 1)
    assert engine.calls == ["start", "drain 30.0", "end", "stop"]


async def test_a_server_that_does_not_stop_is_left_behind_after_the_second_signal(engine, monkeypatch):
    monkeypatch.setattr("engine.shutdown.GRACE", 0.05)

    async def stubborn(stop: asyncio.Event) -> None:
        await asyncio.sleep(60)

    kill_soon()
    kill_soon(delay=0.1)
    await asyncio.wait_for(run(engine, stubborn), 1)
    assert engine.calls[-1] == "stop"


async def test_a_signal_during_the_start_ends_it(engine):
    engine.start_seconds = 60
    kill_soon()
    await asyncio.wait_for(run(engine, until_stopped), 1)
    assert engine.calls == ["start", "stop"]


async def test_a_failed_start_is_raised_and_leaves_nothing(engine):
    engine.start_error = EngineStartError("no memory")
    with pytest.raises(EngineStartError, match="no memory"):
        await run(engine, until_stopped)
    assert engine.calls == ["start", "stop"]


async def test_an_engine_that_gives_up_ends_the_server(engine):
    asyncio.get_running_loop().call_later(0.02, engine.failed.set_result, "giving up")
    stopped = []

    async def serve(stop: asyncio.Event) -> None:
        await stop.wait()
        stopped.append(True)

    with pytest.raises(EngineFailed, match="giving up"):
        await asyncio.wait_for(run(engine, serve), 1)
    assert stopped == [True]
    assert engine.calls == ["start", "stop"]


async def test_what_serve_raises_comes_out(engine):
    async def serve(stop: asyncio.Event) -> None:
        raise OSError("port taken")

    with pytest.raises(OSError, match="port taken"):
        await run(engine, serve)
    assert engine.calls == ["start", "stop"]


async def test_signal_handlers_are_given_back(engine):
    before = signal.getsignal(signal.SIGTERM)
    kill_soon()
    engine.drained.set()
    await run(engine, until_stopped)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
async def test_what_nohup_ignores_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        signals = StopSignals()
        os.kill(os.getpid(), number)
        await asyncio.sleep(0.02)
        assert not signals.first.is_set()
        signals.close()
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
