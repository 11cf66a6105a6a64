"""``--tp 2`` through the real processes, on a CPU with gloo: the tokens of ``--tp 1``, and a group that dies as one."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.launch import Engine, EngineStartError, SupervisorLimits, launch, make_plan
from engine.messages import GenerateReqInput, GrammarSpec
from engine.sampling_params import SamplingParams
from engine.worker_node import WorkerNode
from tests.e2e.engines import QUICK, alive, collect, scaled, until, until_idle
from tests.e2e.tiny_model import VOCAB, tiny_model

pytestmark = pytest.mark.e2e

PROMPTS = 50
STREAMS = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@asynccontextmanager
async def running(
    model: Path, run_dir: Path, tp: int, limits: SupervisorLimits | None = None, **changes
) -> AsyncIterator[Engine]:
    settings = {"kv_pages": 256, "threads": 1, "chunked_prefill_size": 48, **changes}
    config = EngineConfig(
        model=str(model), runner="torch", device="cpu", dtype="float32", tp_size=tp, run_dir=str(run_dir), **settings
    )
    async with launch(config, limits=limits or SupervisorLimits(max_crashes=10)) as engine:
        yield engine


def prompt(index: int) -> GenerateReqInput:
    """Greedy and seeded sampling, penalties, grammars; lengths on both sides of a page and of a chunk."""
    rng = random.Random(index)
    ids = tuple(rng.randrange(VOCAB - 8) for _ in range(rng.choice((1, 3, 16, 17, 33, 90))))
    extra = {"temperature": 0.0} if index % 2 else {"temperature": 0.9, "seed": index, "top_p": 0.9}
    if index % 5 == 0:
        extra |= {"presence_penalty": 0.5, "logprobs": True, "top_logprobs": 2}
    grammar = GrammarSpec(kind="regex", source="[a-z]{5,9}[0-9]{2}") if index % 7 == 3 else None
    return GenerateReqInput(input_ids=ids, sampling=SamplingParams(max_tokens=8, **extra), grammar=grammar)


async def tokens_of(engine: Engine, request: GenerateReqInput) -> tuple[int, ...]:
    outputs = await collect(engine, request)
    assert outputs[-1].finish_reason.type in ("length", "stop"), outputs[-1].finish_reason
    return tuple(token for output in outputs for token in output.token_ids)


async def test_two_ranks_write_the_tokens_of_one(model, run_dir):
    prompts = [prompt(index) for index in range(PROMPTS)]
    answers = []
    for tp in (1, 2):
        async with running(model, run_dir, tp) as engine:
            assert len(engine.pids) == tp + 1
            answers.append(await asyncio.gather(*[tokens_of(engine, request) for request in prompts]))
            await until_idle(engine, 10)
    equal = sum(one == two for one, two in zip(*answers, strict=True))
    print(f"--tp 2 against --tp 1: tokens equal on {equal} of {PROMPTS} prompts")
    assert equal == PROMPTS
    assert len(set(answers[0])) > PROMPTS // 2, "the prompts differ, so must the answers"


async def test_a_dead_rank_ends_the_group_and_the_group_comes_back(model, run_dir):
    """Unseeded sampling under load, then each rank killed."""
    sampling = SamplingParams(temperature=1.0, max_tokens=400, ignore_eos=True)
    async with running(model, run_dir, 2, kv_pages=64) as engine:
        before = await tokens_of(engine, prompt(1))
        for victim in ("model-1", "model") * scaled(1):
            pids = engine.pids
            streams = [
                asyncio.create_task(collect(engine, GenerateReqInput(text=f"stream {i} " * 4, sampling=sampling)))
                for i in range(STREAMS)
            ]
            await asyncio.sleep(0.5)
            killed = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            outputs = await asyncio.gather(*streams)
            told = time.monotonic() - killed
            assert {rows[-1].finish_reason.type for rows in outputs} == {"error"}
            assert {rows[-1].finish_reason.status for rows in outputs} == {503}
            assert told < 2.0
            await until(lambda: engine.state == "ready", 90)
            ready = time.monotonic() - killed
            assert not [pid for pid in pids.values() if alive(pid)], "no rank outlives its group"
            assert await tokens_of(engine, prompt(1)) == before
            print(f"SIGKILL of {victim} under {STREAMS} streams: told after {told:.2f} s, ready after {ready:.1f} s")


async def test_a_frozen_rank_is_replaced_with_its_group(model, run_dir):
    """The other rank waits in a collective and must not pass for a working engine."""
    async with running(model, run_dir, 2, limits=QUICK) as engine:
        before = await tokens_of(engine, prompt(1))
        pids = engine.pids
        stream = asyncio.create_task(
            collect(engine, GenerateReqInput(text="x", sampling=SamplingParams(max_tokens=4000, ignore_eos=True)))
        )
        await asyncio.sleep(0.3)
        os.kill(pids["model-1"], signal.SIGSTOP)
        outputs = await stream
        assert outputs[-1].finish_reason.type == "error"
        await until(lambda: engine.state == "ready" and engine.pids["model"] != pids["model"], 90)
        assert not [pid for pid in pids.values() if alive(pid)]
        assert await tokens_of(engine, prompt(1)) == before


async def test_unseeded_requests_and_aborts_keep_the_ranks_together(model, run_dir):
    """A rank that drew other seeds, or decided otherwise, would notice by checksum and end the group."""
    async with running(model, run_dir, 2, kv_pages=40) as engine:
        pids = engine.pids

        async def some(index: int) -> None:
            stream = engine.generate(
                GenerateReqInput(
                    text=f"request {index} " * (1 + index % 9),
                    sampling=SamplingParams(temperature=1.2, max_tokens=60, ignore_eos=True),
                )
            )
            async for output in stream:
                if index % 3 == 0 and output.completion_tokens > 5:
                    break
            await stream.aclose()

        await asyncio.gather(*[some(index) for index in range(24)])
        await until_idle(engine, 20)
        assert engine.pids == pids
        stats = await engine.stats()
        assert stats.preemptions > 0
        assert stats.leaked_pages == 0


async def test_settings_that_cannot_be_served_are_one_line(model, run_dir):
    for settings, message in (
        ({"tp": 3}, "cannot be divided among 3 ranks"),
        ({"tp": 2, "nnodes": 2}, "--dist-init-addr"),
        ({"tp": 3, "nnodes": 2}, "cannot be divided among --nnodes 2"),
    ):
        with pytest.raises(EngineStartError, match=message) as error:
            async with running(model, run_dir, **settings):
                pass
        assert "\n" not in str(error.value)
    with pytest.raises(EngineStartError, match="hash-lm has no tensor parallelism"):
        async with running(Path("hash-lm"), run_dir, 2):
            pass


async def test_two_nodes_of_one_rank(model, run_dir, monkeypatch):
    """Node 1 in this very process, over loopback: one answer, one fate, and nothing left behind."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    nodes = {"nnodes": 2, "dist_init_addr": address, "kv_pages": 64, "threads": 1}
    settings = {"model": str(model), "runner": "torch", "device": "cpu", "dtype": "float32", "tp_size": 2, **nodes}
    other = WorkerNode(make_plan(EngineConfig(**settings, node_rank=1, run_dir=str(run_dir / "other"))))
    stop = asyncio.Event()
    node = asyncio.create_task(other.run(stop))
    async with running(model, run_dir, 2, **nodes) as engine:
        assert set(engine.pids) == {"model", "detokenizer"}
        before = await tokens_of(engine, prompt(1))
        (rank,) = other.pids
        pids = [rank, *engine.pids.values()]
        os.kill(rank, signal.SIGKILL)
        await until(lambda: engine.state == "restarting", 3)
        await until(lambda: engine.state == "ready", 90)
        assert await tokens_of(engine, prompt(1)) == before
        assert other.pids != (rank,)
        pids += [*other.pids, *engine.pids.values()]
        stop.set()
        await asyncio.wait_for(node, 20)
    assert not [pid for pid in pids if alive(pid)]
    assert not list((run_dir / "other").iterdir())
