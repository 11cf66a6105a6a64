"""Helpers of the process tests: streams on a hash-lm engine, the golden probe, what a process tree leaves behind."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from engine.config import EngineConfig
from engine.launch import Engine, SupervisorLimits
from engine.messages import GenerateOutput, GenerateReqInput
from engine.sampling_params import SamplingParams

GOLDEN_PROMPT = "The golden probe is one fixed greedy request, compared byte for byte."
QUICK = SupervisorLimits(suspect=0.8, frozen=2.0, check_interval=0.1)


def scaled(count: int) -> int:
    """A CI count times CALLGATE_TEST_SCALE (1 by default; the full figures need 10 and more)."""
    return max(1, round(count * float(os.environ.get("CALLGATE_TEST_SCALE", "1"))))


def hash_lm(**changes) -> EngineConfig:
    return EngineConfig(model="hash-lm", **{"kv_pages": 1024, "max_running_requests": 32, **changes})


def request(text: str = "hello", **sampling) -> GenerateReqInput:
    return GenerateReqInput(text=text, sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 32, **sampling}))


async def collect(engine: Engine, req: GenerateReqInput) -> list[GenerateOutput]:
    return [output async for output in engine.generate(req)]


async def text_of(engine: Engine, req: GenerateReqInput) -> str:
    return "".join(output.text for output in await collect(engine, req))


async def golden(engine: Engine) -> tuple[str, tuple, int]:
    """Text, logprobs and usage of the golden probe."""
    outputs = await collect(engine, request(GOLDEN_PROMPT, max_tokens=48, logprobs=True, top_logprobs=3))
    logprobs = tuple(item for output in outputs for item in output.logprobs)
    return "".join(output.text for output in outputs), logprobs, outputs[-1].completion_tokens


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Wait for ``condition``; the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - start


async def pages_in_use(engine: Engine) -> int:
    stats = await engine.stats()
    return stats.total_pages - stats.free_pages - stats.cached_pages


async def until_idle(engine: Engine, seconds: float) -> None:
    """Wait until the scheduler holds no request and no page but cached ones."""
    deadline = time.monotonic() + seconds
    while True:
        stats = await engine.stats()
        if stats.running == stats.waiting == 0 and await pages_in_use(engine) == 0:
            return
        assert time.monotonic() < deadline, stats
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def listeners(pids: list[int]) -> list[object]:
    """TCP sockets in state LISTEN of these processes."""
    return [
        connection
        for pid in pids
        for connection in psutil.Process(pid).net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]


def run_dirs(parent: Path) -> list[Path]:
    return sorted(parent.glob("callgate-*"))
