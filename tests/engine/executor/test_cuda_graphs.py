"""Decode graphs and the device sampler with a recorder that records nothing: buckets, padding, fixed tables."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.flash_backend import FlashBackend, read_functions
from engine.attention.triton_backend import TritonBackend
from engine.config import EngineConfig
from engine.executor.cuda_graphs import graph_sizes
from engine.executor.device_sampler import DeviceSampler, on_device
from engine.grammar.interface import GrammarError
from engine.kv_cache.manager import KVCacheManager
from engine.messages import DecodeParams, TokenizedGenerateReqInput
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.req import Req
from engine.scheduler.scheduler import Scheduler
from tests.engine.attention.flash_packages import PACKAGES
from tests.engine.executor.driver import Sequences, load
from tests.engine.models.tiny import make_model, random_tokens, save


class Replays:
    """Runs again what it was given, on the same tensors; all results lie in the same memory, as real graphs' may."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        self.log: list[str] = []
        self._memory = torch.empty(0)

    def record(self, run):
        self.recorded += 1
        result = run()
        if result.numel() > self._memory.numel():
            self._memory = torch.empty(result.numel())
        place = self._memory[: result.numel()].view(result.shape)

        def replay():
            self.replayed += 1
            self.log.append("replay")
            return place.copy_(run())

        return replay


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(
        make_model("qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1),
        tmp_path_factory.mktemp("model"),
    )


def on_kernels(path, backend: str = "triton", calls: list | None = None, pages: int = 24):
    """A TorchExecutor whose attention is the Triton kernels, or a flash package of PACKAGES."""
    if backend == "triton":
        executor = load(path, pages=pages)
        executor._attention = TritonBackend(executor._attention.spec, executor._pool)
        return executor
    package, make, page_size = PACKAGES[backend]
    executor = load(path, pages=pages, page_size=page_size)
    functions = read_functions(package, make(calls))
    executor._attention = FlashBackend(executor._attention.spec, executor._pool, functions)
    return executor


@pytest.fixture
def executor(path):
    return on_kernels(path)


@pytest.fixture(params=["triton", *PACKAGES])
def any_executor(path, request):
    return on_kernels(path, request.param)


def graphs(executor, rows: int, recorder=None, max_model_len: int = 96):
    config = EngineConfig(model="m", max_running_requests=rows, max_model_len=max_model_len)
    return executor.make_graphs(config, recorder or Replays())


def test_sizes():
    assert graph_sizes(1) == (1,)
    assert graph_sizes(3) == (1, 2, 3)
    assert graph_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert graph_sizes(4096)[-1] == 512


def prepared(executor, lengths):
    """Sequences of these lengths in the pool, and the step that adds one token to each."""
    sequences = Sequences(executor)
    for row, length in enumerate(lengths):
        sequences.step([(str(row), random_tokens(length, seed=row), 0)])
    rows = [(str(row), random_tokens(1, seed=50 + row), length) for row, length in enumerate(lengths)]
    return sequences.batch(rows)


@pytest.mark.parametrize("lengths", [[5], [17, 1, 40]])
def test_a_graph_gives_the_logits_of_the_eager_step(any_executor, lengths):
    """Three rows in a graph of four: the padding row changes nothing."""
    decode = graphs(any_executor, 4)
    batch = prepared(any_executor, lengths)
    assert decode.fits(batch)
    before = [any_executor._pool.keys.clone(), any_executor._pool.values.clone()]
    expected = any_executor.logits(any_executor.forward(batch), batch.logits_index)
    eager = [any_executor._pool.keys.clone(), any_executor._pool.values.clone()]
    for pool, saved in zip((any_executor._pool.keys, any_executor._pool.values), before, strict=True):
        pool.copy_(saved)
    with torch.inference_mode():
        got = decode.run(batch).numpy()
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 1e-4
    for pool, saved in zip((any_executor._pool.keys, any_executor._pool.values), eager, strict=True):
        assert (pool - saved).abs().max() < 1e-5


def test_recording_touches_no_page(any_executor):
    for pool in (any_executor._pool.keys, any_executor._pool.values):
        pool.fill_(3.0)
    recorder = Replays()
    graphs(any_executor, 3, recorder)
    assert recorder.recorded == 3
    assert (any_executor._pool.keys == 3.0).all()
    assert (any_executor._pool.values == 3.0).all()


def test_a_smaller_batch_after_a_larger_one_sees_nothing_of_it(any_executor):
    decode = graphs(any_executor, 4)
    large, small = prepared(any_executor, [9, 20, 33, 4]), None
    with torch.inference_mode():
        decode.run(large)
        any_executor._pool.keys.zero_(), any_executor._pool.values.zero_()
        small = prepared(any_executor, [12, 3, 7])
        got = decode.run(small).clone().numpy()
    assert np.abs(got - any_executor.logits(any_executor.forward(small), small.logits_index)).max() < 1e-4


@pytest.mark.parametrize("backend", PACKAGES)
def test_a_flash_graph_may_keep_every_argument(path, backend):
    """A recorded launch sees the addresses, shapes and host numbers of the recording, whatever is replayed."""
    calls: list = []
    executor = on_kernels(path, backend, calls)
    decode = graphs(executor, 4)
    recorded = list(calls)
    assert len(recorded) == 3
    for lengths in ([9, 20, 33], [1, 2, 3], [70, 4, 5]):
        batch = prepared(executor, lengths)
        calls.clear()
        with torch.inference_mode():
            decode.run(batch)
        assert len(calls) == 1
        assert calls[0] in recorded


def test_steps_that_no_graph_fits(executor):
    decode = graphs(executor, 2, max_model_len=32)
    assert not decode.fits(prepared(executor, [3, 4, 5]))
    assert not decode.fits(prepared(executor, [40]))
    sequences = Sequences(executor)
    assert not decode.fits(sequences.batch([("x", [1, 2, 3], 0)]))


# ---------------------------------------------------------------- device sampler


class Letters:
    """Allows what it was told, refuses everything else."""

    terminated = False

    def __init__(self, allowed: set[int], words: int) -> None:
        self.allowed = allowed
        self.mask = np.zeros(words, np.int32)
        for token in allowed:
            self.mask[token // 32] |= np.int32(np.uint32(1 << (token % 32)).view(np.int32))

    def fill_mask(self, mask) -> bool:
        mask[:] = self.mask
        return True

    def accept(self, token: int) -> bool:
        if token == 13:
            raise GrammarError("thirteen")
        return token in self.allowed


def make_req(kv, name: str, params: SamplingParams, grammar=None) -> Req:
    req = Req(name, random_tokens(4, seed=len(name)), max_len=60)
    req.sampling = SamplingState(params, seed=len(name), prompt=req.tokens)
    req.grammar = grammar
    req.lease = kv.lease("", 40)
    return req


def every_kind_of_row(executor) -> ScheduleBatch:
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    words = -(-199 // 32)
    reqs = [
        make_req(kv, "a", SamplingParams(temperature=0)),
        make_req(kv, "bb", SamplingParams(temperature=0.8, top_p=0.9)),
        make_req(kv, "ccc", SamplingParams(temperature=0, logprobs=True)),
        make_req(kv, "dddd", SamplingParams(temperature=0, presence_penalty=1.0)),
        make_req(kv, "eeeee", SamplingParams(temperature=0), Letters({5, 6, 7}, words)),
        make_req(kv, "ffffff", SamplingParams(temperature=0), Letters(set(), words)),
        make_req(kv, "ggggggg", SamplingParams(temperature=0), Letters({13}, words)),
        make_req(kv, "hhhhhhhh", SamplingParams(temperature=0.5, top_k=3)),
    ]
    return ScheduleBatch(tuple(make_row(req, 4) for req in reqs), executor.page_size)


def test_rows_are_sampled_where_they_can_be_and_as_the_host_would(executor):
    batch = every_kind_of_row(executor)
    logits = torch.randn(len(batch.rows), 199, generator=torch.Generator().manual_seed(0)) * 3
    logits[7, 3] = float("nan")
    assert [on_device(row) for row in batch.rows] == [True, True, False, False, False, False, False, True]
    host = executor._sampler.sample(logits.numpy(), every_kind_of_row(executor))
    executor._sampler.prepare(batch)
    assert [on_device(row) for row in batch.rows] == [True, True, False, False, True, True, True, True]
    got = DeviceSampler(executor._sampler).sample(logits, batch)
    assert [row.token_ids for row in got] == [row.token_ids for row in host]
    assert got[2].logprobs == host[2].logprobs
    assert [row.error is None for row in got] == [True] * 5 + [False] * 3
    assert [row.error_status for row in got] == [row.error_status for row in host]
    assert got[4].token_ids[0] in {5, 6, 7}


def test_prompt_chunks_and_drafts_beside_device_rows(executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    first, chunk, draft = (make_req(kv, name, SamplingParams(temperature=0)) for name in ("a", "bb", "ccc"))
    rows = (make_row(chunk, 2), make_row(draft, 4, (1, 2)), make_row(first, 4))
    batch = ScheduleBatch(rows, executor.page_size)
    logits = torch.randn(4, 199, generator=torch.Generator().manual_seed(1))
    got = DeviceSampler(executor._sampler).sample(logits, batch)
    assert got[0].token_ids == ()
    assert got[1].token_ids == (int(logits[0].argmax()),)
    assert got[2].token_ids == (int(logits[3].argmax()),)


def serve(executor, count: int = 5) -> dict[str, tuple[int, ...]]:
    """Requests of many kinds through a real scheduler: chunks, decodes beside prompts, drafts, preemption."""
    settings = SchedulerConfig(
        max_running_requests=4, chunked_prefill_size=24, max_model_len=96, num_draft_tokens=2, strict=True
    )
    scheduler = Scheduler(settings, executor, random_seed=lambda: 5)
    kinds = ({"temperature": 0.0}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.7, "presence_penalty": 0.4})
    for index in range(count):
        sampling = SamplingParams(max_tokens=5, ignore_eos=True, seed=index, **kinds[index % 3])
        ids = tuple(random_tokens(4 + 9 * index, seed=index))
        scheduler.add(
            TokenizedGenerateReqInput(rid=f"r{index}", input_ids=ids, sampling=sampling, decode=DecodeParams())
        )
    out: dict[str, tuple[int, ...]] = {}
    while scheduler.has_work():
        for message in scheduler.step():
            for row in message.rows:
                assert row.finish_reason is None or row.finish_reason.type == "length"
                out[row.rid] = (*out.get(row.rid, ()), *row.token_ids)
    return out


@pytest.mark.parametrize("backend", ["triton", "vllm_flash_attn", "vllm-newer"])
def test_the_gpu_path_serves_the_tokens_of_the_reference_path(path, backend):
    """Paged attention, graphs and device sampling under the scheduler, against sdpa and the host's sampler."""
    expected = serve(load(path, pages=24))
    executor, recorder = on_kernels(path, backend), Replays()
    executor._device_steps = executor.device_steps(graphs(executor, 4, recorder))
    assert serve(executor) == expected
    assert recorder.replayed > 3
