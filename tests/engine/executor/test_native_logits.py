"""Logits of the native runner: against transformers, and bit by bit under chunks, batches, pages and threads."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from engine.config import EngineConfig
from engine.executor import native_executor
from engine.executor.native_executor import refuses
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.driver import Sequences
from tests.engine.executor.native_driver import NativeDriver, load_native
from tests.engine.models.tiny import VARIANTS, make_model, random_tokens, reference_logits, save

PROMPTS = [random_tokens(count, seed=count) for count in (5, 17, 64, 65, 300, 31, 1, 90)]


def run_whole(driver, tokens):
    return Sequences(driver).step([("whole", tokens, 0)])[0]


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_logits_equal_transformers(variant, tmp_path):
    model = make_model(variant, scale=0.1)
    path = save(model, tmp_path)
    reason = refuses(EngineConfig(model="x"), open_checkpoint(path).config)
    if variant in ("qwen2-7-heads", "llama-3-heads"):
        assert reason is not None
        assert "multiple of 32" in reason
        return
    assert reason is None
    executor = load_native(path)
    tokens = random_tokens(90)
    difference = run_whole(NativeDriver(executor), tokens) - reference_logits(model, tokens)
    executor.close()
    assert difference.abs().max() < 1e-4


@pytest.fixture(scope="module", params=["none-float32", "none-bfloat16", "int8-bfloat16", "int4-int8", "bf16-bfloat16"])
def settings(request, tmp_path_factory):
    quantization, kv = request.param.split("-")
    model = make_model("qwen3-bias", scale=0.1)
    path = save(model.bfloat16() if quantization == "bf16" else model, tmp_path_factory.mktemp("model"))
    yield path, {"quantization": "none" if quantization == "bf16" else quantization, "kv_cache_dtype": kv, "pages": 256}
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def driver(settings):
    path, options = settings
    executor = load_native(path, **options)
    yield NativeDriver(executor)
    executor.close()


@pytest.fixture(scope="module")
def alone(driver):
    return [run_whole(driver, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunk_size(driver, alone, size):
    for prompt, expected in zip(PROMPTS, alone):
        sequences = Sequences(driver, seed=size)
        chunks = [sequences.step([("a", prompt[i : i + size], i)])[0] for i in range(0, len(prompt), size)]
        assert torch.equal(torch.cat(chunks), expected)


@pytest.mark.parametrize("seed", range(4))
def test_random_batches_and_chunks(driver, alone, seed):
    rng = random.Random(seed)
    sequences = Sequences(driver, seed=seed)
    done = [[] for _ in PROMPTS]
    position = [0] * len(PROMPTS)
    while any(at < len(prompt) for at, prompt in zip(position, PROMPTS)):
        open_ = [i for i, prompt in enumerate(PROMPTS) if position[i] < len(prompt)]
        rows = []
        for i in rng.sample(open_, rng.randint(1, len(open_))):
            size = rng.choice([1, 1, 2, 5, 20, 100])
            rows.append((str(i), PROMPTS[i][position[i] : position[i] + size], position[i]))
        for (name, tokens, _), logits in zip(rows, sequences.step(rows)):
            done[int(name)].append(logits)
            position[int(name)] += len(tokens)
    for i, expected in enumerate(alone):
        assert torch.equal(torch.cat(done[i]), expected), i


@pytest.mark.parametrize("seed", range(6))
def test_logits_of_some_tokens(driver, alone, seed):
    """Rows whose logits nobody wants are left out of the last layer: the others' bits stay, and so do all pages."""
    rng = random.Random(seed)
    sequences = Sequences(driver, seed=seed)
    half = [len(prompt) // 2 for prompt in PROMPTS]
    rows = [(str(i), prompt[: half[i]], 0) for i, prompt in enumerate(PROMPTS) if half[i]]
    batch = sequences.batch(rows)
    ends = batch.cu_seqlens[1:] - 1
    spans = [range(max(0, end - rng.choice([0, 3, 40])), end + 1) for end in ends.tolist()]
    wanted = [
        [],
        ends.tolist(),
        ends[-1:].tolist(),
        sorted({at for span in spans for at in span}),
        sorted(rng.sample(range(len(batch.input_ids)), len(rows))),
        rng.sample(range(len(batch.input_ids)), 3),
    ][seed]
    index = np.array(wanted, np.int32)
    logits = torch.from_numpy(np.array(driver.forward(replace(batch, logits_index=index))))
    expected = torch.cat([alone[int(name)][: len(tokens)] for name, tokens, _ in rows])
    assert torch.equal(logits, expected[index.tolist()])
    for i, prompt in enumerate(PROMPTS):
        if half[i]:
            assert torch.equal(sequences.step([(str(i), prompt[half[i] :], half[i])])[0], alone[i][half[i] :])


@pytest.mark.parametrize("rows", [2, 5, 16, 64])
def test_decode_batch(driver, alone, rows):
    """A row's bits beside 1 to 63 others, at every place in the batch that it may get."""
    for index, prompt in enumerate(PROMPTS[:5]):
        sequences = Sequences(driver, seed=rows)
        if len(prompt) > 1:
            sequences.step([("a", prompt[:-1], 0)])
        others = [(f"f{i}", random_tokens(1 + (rows == 16) * (i % 3), seed=i), 0) for i in range(rows - 1)]
        place = index * rows // 5
        batch = [*others[:place], ("a", prompt[-1:], len(prompt) - 1), *others[place:]]
        assert torch.equal(sequences.step(batch)[place], alone[index][-1:])


@pytest.mark.parametrize(("page_size", "threads"), [(1, 1), (4, 2), (64, 3)])
def test_page_size_and_threads(settings, alone, page_size, threads):
    path, options = settings
    executor = load_native(path, page_size=page_size, threads=threads, **options)
    for prompt, expected in zip(PROMPTS[:3], alone):
        assert torch.equal(run_whole(NativeDriver(executor), prompt), expected)
    executor.close()


def test_shared_prefix_pages(driver, alone):
    """A second sequence that starts on the first one's pages continues with the same bits."""
    prompt, expected = PROMPTS[4], alone[4]
    sequences = Sequences(driver)
    sequences.step([("first", prompt[:256], 0)])
    sequences._pages["second"] = sequences._pages["first"][: 256 // driver.page_size]
    assert torch.equal(sequences.step([("second", prompt[256:], 256)])[0], expected[256:])


@pytest.mark.parametrize(("quantization", "kind", "bound"), [("int8", "Q8_0", 0.045), ("int4", "Q4_1", 0.06)])
def test_quantized_weights_equal_dequantized_ones(quantization, kind, bound, tmp_path):
    """Against transformers with the weights that the quantized ones stand for: what is left is the activations'
    rounding. Relative error of logits in the root mean square."""
    model = make_model("qwen2", scale=0.05, hidden_size=256, intermediate_size=512)
    executor = load_native(save(model, tmp_path), quantization=quantization)
    kind = GGMLQuantizationType[kind]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("proj.weight") or name == "lm_head.weight":
                parameter.copy_(torch.from_numpy(dequantize(quantize(parameter.numpy(), kind), kind)))
    tokens = random_tokens(60)
    reference = reference_logits(model, tokens)
    error = (run_whole(NativeDriver(executor), tokens) - reference).pow(2).mean().sqrt() / reference.pow(
        2
    ).mean().sqrt()
    executor.close()
    assert 1e-4 < error < bound


@pytest.mark.parametrize(("kv", "gain"), [("int8", 5), ("bfloat16", 2)])
def test_a_large_key_bias_costs_no_precision(kv, gain, tmp_path, monkeypatch):
    """Qwen2's keys have a large constant part in slow rotary pairs; stored keys leave it out."""
    model = make_model("qwen2", scale=0.1, rope_parameters={"rope_type": "default", "rope_theta": 1e8})
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.k_proj.bias[7::8] += 200.0
    path, tokens = save(model, tmp_path), random_tokens(120)
    reference = reference_logits(model, tokens)

    def error() -> float:
        executor = load_native(path, kv_cache_dtype=kv)
        difference = run_whole(NativeDriver(executor), tokens) - reference
        executor.close()
        return float(difference.pow(2).mean().sqrt())

    with_offset = error()
    monkeypatch.setattr(native_executor, "_key_offset", lambda *_: np.zeros((2, 16), np.float32))
    assert with_offset * gain < error()
