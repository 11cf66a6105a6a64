"""The executor as the scheduler uses it: real Reqs and leases, sampling, embeddings, prompt logprobs, pages."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from engine.config import EngineConfig
from engine.executor.kv_budget import KVMemoryError, kv_pages
from engine.executor.torch_executor import TorchExecutor
from engine.kv_cache.manager import KVCacheManager
from engine.platform.device import DeviceError, resolve_device
from engine.platform.host import (
    available_memory,
    calm_openmp,
    cpu_flags,
    has_fast_bfloat16,
    total_memory,
    usable_threads,
)
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.req import Req
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.driver import load, run_whole
from tests.engine.models.tiny import make_model, random_tokens, reference_logits, save


@pytest.fixture(scope="module")
def model():
    return make_model("qwen3")


@pytest.fixture(scope="module")
def path(model, tmp_path_factory):
    return save(model, tmp_path_factory.mktemp("model"))


@pytest.fixture
def executor(path):
    return load(path)


def make_req(kv: KVCacheManager, tokens: list[int], *, params: SamplingParams | None = None, room: int = 20) -> Req:
    req = Req(str(len(tokens)), list(tokens), max_len=1000)
    if params is not None:
        req.sampling = SamplingState(params, seed=1, prompt=tokens)
    req.lease = kv.lease("", len(tokens) + room)
    return req


def run(executor: TorchExecutor, req: Req, count: int, draft: tuple[int, ...] = ()):
    batch = ScheduleBatch((make_row(req, count, draft),), executor.page_size)
    return executor.execute(batch).rows[0]


def greedy(model, tokens: list[int], count: int) -> list[int]:
    out = list(tokens)
    for _ in range(count):
        out.append(int(reference_logits(model, out)[-1].argmax()))
    return out[len(tokens) :]


def test_greedy_generation_with_chunks_equals_transformers(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(40)
    req = make_req(kv, tokens, params=SamplingParams(temperature=0))
    assert run(executor, req, 25).token_ids == ()
    req.num_computed = 25
    output: list[int] = []
    while len(output) < 8:
        (token,) = run(executor, req, req.num_pending).token_ids
        req.num_computed = len(req.tokens)
        req.tokens.append(token)
        output.append(token)
    assert output == greedy(model, tokens, 8)


def test_drafts_are_accepted_as_far_as_the_model_agrees(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(30, seed=5)
    wanted = greedy(model, tokens, 4)
    wrong = (wanted[2] + 1) % 199
    req = make_req(kv, tokens, params=SamplingParams(temperature=0))
    row = run(executor, req, 30, (wanted[0], wanted[1], wrong, wanted[3]))
    assert list(row.token_ids) == wanted[:3]


def test_prompt_logprobs(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(20)
    req = make_req(kv, tokens, params=SamplingParams(temperature=0, logprobs=True, top_logprobs=2))
    req.prompt_logprobs = True
    first = run(executor, req, 8)
    req.num_computed = 8
    second = run(executor, req, 12)
    got = [entry.logprob for entry in (*first.prompt_logprobs, *second.prompt_logprobs)]
    expected = torch.log_softmax(reference_logits(model, tokens), -1)
    assert got == pytest.approx([float(expected[i, token]) for i, token in enumerate(tokens[1:])], abs=1e-3)
    assert second.token_ids == (int(expected[-1].argmax()),)


def test_embeddings_are_the_mean_of_the_last_hidden_state(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(33)
    req = make_req(kv, tokens)
    first = run(executor, req, 13)
    req.num_computed = 13
    second = run(executor, req, 20)
    got = (np.array(first.embedding) * 13 + np.array(second.embedding) * 20) / 33
    with torch.no_grad():
        expected = model.model(torch.tensor([tokens])).last_hidden_state[0].mean(0)
    assert np.allclose(got, expected.numpy(), atol=1e-4)


def test_mixed_rows_keep_their_own_results(model, executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    prompts = [random_tokens(count, seed=count) for count in (3, 20, 41)]
    reqs = [make_req(kv, prompt, params=SamplingParams(temperature=0)) for prompt in prompts]
    embed = make_req(kv, random_tokens(9))
    chunk = make_req(kv, random_tokens(50, seed=8), params=SamplingParams(temperature=0))
    rows = [make_row(reqs[0], 3), make_row(embed, 9), make_row(reqs[1], 20), make_row(chunk, 10), make_row(reqs[2], 41)]
    out = executor.execute(ScheduleBatch(tuple(rows), executor.page_size)).rows
    assert [list(out[i].token_ids) for i in (0, 2, 4)] == [greedy(model, prompt, 1) for prompt in prompts]
    assert out[1].embedding is not None
    assert (out[3].token_ids, out[3].embedding, out[3].error) == ((), None, None)


def test_copied_pages_hold_the_same_prefix(executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    tokens = random_tokens(17)
    req = make_req(kv, tokens, params=SamplingParams(temperature=0, logprobs=True))
    run(executor, req, 16)
    req.num_computed = 16
    expected = run(executor, req, 1)
    twin = make_req(kv, tokens, params=SamplingParams(temperature=0, logprobs=True))
    twin.num_computed = 16
    executor.copy_page(int(req.lease.pages[0]), int(twin.lease.pages[0]))
    assert run(executor, twin, 1) == expected


def test_a_loaded_model_has_the_form_that_was_asked_for(path):
    config = EngineConfig(model=str(path), device="cpu", dtype="bfloat16", kv_pages=7, page_size=8, threads=1)
    executor = TorchExecutor(config, open_checkpoint(path))
    assert (executor.num_pages, executor.page_size, executor.vocab_size) == (7, 8, 199)
    assert (executor.device.dtype_name, executor.attention_name) == ("bfloat16", "sdpa")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantization": "int4"}, "--quantization int4"),
        ({"kv_cache_dtype": "int8"}, "--kv-cache-dtype int8"),
        ({"attention_backend": "flash"}, "flash"),
    ],
)
def test_settings_that_this_runner_cannot_serve(path, settings, message):
    with pytest.raises(ValueError, match=message):
        load(path, **settings)


# ---------------------------------------------------------------- platform and memory


def test_dtype_follows_the_cpu(monkeypatch):
    for flags, dtype in ((frozenset({"avx512_bf16"}), torch.bfloat16), (frozenset({"avx2"}), torch.float32)):
        monkeypatch.setattr("engine.platform.device.cpu_flags", lambda flags=flags: flags)
        assert resolve_device(EngineConfig(model="m", device="cpu")).dtype == dtype
        assert resolve_device(EngineConfig(model="m", device="cpu", dtype="float16")).dtype == torch.float16


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_cuda_without_a_gpu_is_one_clear_line():
    assert resolve_device(EngineConfig(model="m")).is_cpu
    with pytest.raises(DeviceError, match="--device cpu"):
        resolve_device(EngineConfig(model="m", device="cuda"))


def test_host(tmp_path):
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nflags\t\t: fpu amx_bf16 avx2\n")
    assert has_fast_bfloat16(cpu_flags(tmp_path / "cpuinfo"))
    assert cpu_flags(tmp_path / "none") == frozenset()
    assert usable_threads(3) == 3
    assert usable_threads() >= 1
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("400000\n")
    assert (available_memory(tmp_path), total_memory(tmp_path)) == (600000, 1000000)
    (tmp_path / "memory.stat").write_text("anon 150000\nfile 250000\ninactive_file 200000\nactive_file 30000\n")
    assert available_memory(tmp_path) == 830000, "as in the system's figure, the page cache counts as available"
    (tmp_path / "memory.stat").write_text("\n")
    assert available_memory(tmp_path) == 600000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) > 1000000


def budget(free=8 << 30, total=16 << 30, on_cpu=True, page_bytes=1 << 20, **settings):
    config = EngineConfig(model="m", **settings)
    return kv_pages(config, page_bytes=page_bytes, free_bytes=free, total_bytes=total, on_cpu=on_cpu)


def test_kv_pages():
    assert budget() == 2048
    assert budget(free=1 << 30) == 409
    assert budget(kv_pages=5) == 5
    assert budget(mem_fraction_static=0.75) == 4096
    assert budget(on_cpu=False, free=60 << 30, total=80 << 30) == int(80 * 0.85 - 20) * 1024
    with pytest.raises(KVMemoryError, match="--mem-fraction-static"):
        budget(mem_fraction_static=0.3)
    with pytest.raises(KVMemoryError, match="one page takes 4194304 KiB"):
        budget(page_bytes=4 << 30)


def test_logits_of_many_rows_are_the_same_bits(executor, monkeypatch):
    tokens = random_tokens(200)
    few = run_whole(executor, tokens)
    monkeypatch.setattr("engine.executor.torch_executor._LOGITS_ROWS", 1000)
    assert torch.equal(run_whole(executor, tokens), few)


def test_openmp_sleeps_unless_the_user_says_otherwise(monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    calm_openmp()
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    calm_openmp()
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
