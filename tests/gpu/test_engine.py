"""The engine on a GPU: against the CPU, graphs against eager steps, backends against each other, and a real server."""

from __future__ import annotations

import asyncio
import re

import pytest
import torch

from engine.attention.registry import NoAttentionBackend
from engine.config import EngineConfig
from engine.executor.torch_executor import TorchExecutor
from engine.launch import launch
from engine.messages import GenerateReqInput, GrammarSpec
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import open_checkpoint
from tests.e2e.engines import collect, until_idle
from tests.e2e.tiny_model import tiny_model
from tests.engine.executor.driver import Sequences, load, run_whole
from tests.engine.executor.test_run_ahead import Counting, decode_only
from tests.engine.models.tiny import make_model, random_tokens, save
from tests.engine.quantization.checkpoints import quantize

SHAPE = {"hidden_size": 256, "head_dim": 64, "intermediate_size": 512, "scale": 0.06}


def on_gpu(path, *, dtype="float32", pages=256, **settings) -> TorchExecutor:
    config = EngineConfig(
        model=str(path),
        device="cuda",
        dtype=dtype,
        kv_pages=pages,
        max_model_len=512,
        max_running_requests=8,
        **settings,
    )
    return TorchExecutor(config, open_checkpoint(path))


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "moe"])
def test_logits_are_those_of_the_cpu(variant, tmp_path):
    path, tokens = save(make_model(variant, **SHAPE), tmp_path), random_tokens(150)
    executor = on_gpu(path)
    assert executor.attention_name == "triton"
    expected = run_whole(load(path), tokens)
    assert (run_whole(executor, tokens) - expected).abs().max() < 2e-3 * expected.abs().max()


@pytest.mark.parametrize("backend", ["sdpa", "flash"])
@pytest.mark.parametrize("page_size", [16, 256])
def test_backends_agree(backend, page_size, tmp_path):
    path = save(make_model("qwen3", **SHAPE), tmp_path)
    settings = {"dtype": "bfloat16", "page_size": page_size}
    try:
        other = on_gpu(path, attention_backend=backend, **settings)
    except NoAttentionBackend as error:
        pytest.skip(str(error))
    tokens = random_tokens(300)
    expected = run_whole(on_gpu(path, attention_backend="triton", **settings), tokens)
    assert (run_whole(other, tokens) - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize("backend", ["triton", "flash"])
def test_graphs_against_eager_steps(backend, tmp_path):
    path, half = save(make_model("qwen3", **SHAPE), tmp_path), {"dtype": "bfloat16", "page_size": 256}
    try:
        executor = on_gpu(path, attention_backend=backend, **(half if backend == "flash" else {}))
    except NoAttentionBackend as error:
        pytest.skip(str(error))
    graphs = executor._graphs
    assert graphs is not None
    sequences = Sequences(executor)
    lengths = [5, 64, 200]
    for row, length in enumerate(lengths):
        sequences.step([(str(row), random_tokens(length, seed=row), 0)])
    for step in range(4):
        rows = [(str(row), random_tokens(1, seed=step), length + step) for row, length in enumerate(lengths)]
        batch = sequences.batch(rows)
        expected = executor.logits(executor.forward(batch), batch.logits_index)
        before = executor._pool.keys.clone()
        with torch.inference_mode():
            got = graphs.run(batch).cpu().numpy()
        assert abs(got - expected).max() < (1e-3 if backend == "triton" else 0.03) * abs(expected).max()
        changed = (executor._pool.keys != before).any(dim=(0, 2, 3)).nonzero()[:, 0].tolist()
        assert set(changed) <= set(batch.slot_mapping.tolist()), "padding rows write nowhere"


@pytest.mark.parametrize("count", [1, 6])
def test_steps_launched_ahead_give_the_tokens_of_steps_in_turn(count, tmp_path):
    """Rows cross page borders in steps of their own; greedy, so that only the logits decide."""
    executor = on_gpu(save(make_model("qwen3", **SHAPE), tmp_path))
    steps = executor._device_steps
    counts = Counting(steps.ahead)
    ahead = decode_only(executor, count, temperature=0.0)
    assert counts.answered > 20
    steps.ahead = None
    assert decode_only(executor, count, temperature=0.0) == ahead


@pytest.mark.parametrize("form", ["awq", "gptq", "fp8-tensor", "fp8-block"])
@pytest.mark.parametrize("variant", ["qwen3", "moe"])
def test_packed_checkpoints(form, variant, tmp_path):
    path = save(make_model(variant, **SHAPE), tmp_path)
    quantize(path, form)
    tokens = random_tokens(50)
    expected = run_whole(load(path), tokens)
    assert (run_whole(on_gpu(path), tokens) - expected).abs().max() < 2e-3 * expected.abs().max()


def test_pages_come_from_what_a_step_leaves_free(tmp_path):
    executor = on_gpu(save(make_model("qwen3", **SHAPE), tmp_path), pages=0, mem_fraction_static=0.3)
    taken = executor._pool.keys.nbytes + executor._pool.values.nbytes
    assert 0.1 * executor.device.total_bytes() < taken < 0.3 * executor.device.total_bytes()


async def test_a_server_with_random_weights(tmp_path):
    """32 streams at once through the real processes: prompts in chunks, graphs, sampling on the device, a grammar."""
    path = tiny_model(tmp_path / "model", **SHAPE)
    config = EngineConfig(model=str(path), device="cuda", dtype="bfloat16", kv_pages=2048, max_model_len=1024)
    async with launch(config) as engine:
        assert engine.model_info.device.startswith("cuda")
        sampling = SamplingParams(temperature=0.8, seed=1, max_tokens=64, ignore_eos=True)
        requests = [GenerateReqInput(text=f"stream {index} " * 20, sampling=sampling) for index in range(32)]
        alone = await collect(engine, requests[0])
        outputs = await asyncio.gather(*[collect(engine, request) for request in requests])
        assert {rows[-1].completion_tokens for rows in outputs} == {64}
        assert alone[-1].completion_tokens == 64
        held = GenerateReqInput(text="held ", sampling=sampling, grammar=GrammarSpec(kind="regex", source="[ab]{8}"))
        written = "".join(row.text for row in await collect(engine, held))
        assert re.fullmatch("[ab]{8}", written)
        await until_idle(engine, 10)
        assert (await engine.stats()).leaked_pages == 0
