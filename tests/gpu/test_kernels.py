"""Every kernel against its reference at the shapes of real models. tests/engine/kernels/triton has the odd ones."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.quant_weight import QuantWeight, pack_int4, quant_linear_ref
from engine.kernels.triton.attention_ref import paged_attention_ref
from engine.kernels.triton.decode_attention import decode_attention
from engine.kernels.triton.gate_up import gate_up, gate_up_ref
from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp, grouped_mlp_ref
from engine.kernels.triton.grouped_quant import grouped_quant_mlp, grouped_quant_mlp_ref
from engine.kernels.triton.prefill_attention import prefill_attention
from engine.kernels.triton.quant_linear import quant_linear
from engine.kernels.triton.rms_norm import rms_norm, rms_norm_ref
from engine.kernels.triton.rotary_kv import KVTarget, rotary_kv_write, rotary_kv_write_ref
from engine.kernels.triton.sample import SampleParams, kept_ref, sample
from engine.kernels.triton.silu_and_mul import silu_and_mul, silu_and_mul_ref
from tests.engine.kernels.triton.cases import DEVICE, assert_near, bounds, paged, randn

BF16 = torch.bfloat16


def test_rows():
    x, residual, weight = (randn(*shape, dtype=BF16, seed=i) for i, shape in enumerate([(300, 4096)] * 2 + [(4096,)]))
    for got, expected in zip(rms_norm(x, weight, 1e-6, residual), rms_norm_ref(x, weight, 1e-6, residual)):
        assert_near(got, expected)
    wide = randn(300, 2 * 12288, dtype=BF16)
    assert_near(silu_and_mul(wide), silu_and_mul_ref(wide))


@pytest.mark.parametrize("dim", [64, 80, 128])
def test_rotary_and_kv_write(dim):
    parts = tuple(randn(100, heads, dim, dtype=BF16, seed=heads) for heads in (32, 8, 8))
    angles = randn(100, dim // 2, scale=3.0)
    slots = torch.randperm(200, device=DEVICE)[:100].to(torch.int32)
    slots[7] = -1
    pools = [[torch.zeros((200, 8, dim), dtype=BF16, device=DEVICE) for _ in "kv"] for _ in range(2)]
    outs = [
        function(parts, (angles.cos(), angles.sin()), KVTarget(*pool, slots))
        for function, pool in zip((rotary_kv_write, rotary_kv_write_ref), pools)
    ]
    assert_near(*outs)
    for got, expected in zip(*pools):
        assert_near(got, expected)


@pytest.mark.parametrize(("heads", "kv_heads", "dim", "page_size"), [(32, 8, 128, 16), (14, 2, 64, 1), (6, 6, 80, 64)])
def test_attention(heads, kv_heads, dim, page_size):
    lengths = [1, 700, 3000, 64, 257]
    kv = paged(lengths, kv_heads=kv_heads, dim=dim, page_size=page_size, dtype=BF16)
    q = randn(5, heads, dim, dtype=BF16)
    assert_near(decode_attention(q, kv, dim**-0.5), paged_attention_ref(q, bounds([1] * 5), kv, dim**-0.5))
    counts = [1, 300, 200, 64, 3]
    q = randn(sum(counts), heads, dim, dtype=BF16)
    got = prefill_attention(q, bounds(counts), kv, dim**-0.5, longest=300)
    assert_near(got, paged_attention_ref(q, bounds(counts), kv, dim**-0.5))


@pytest.mark.parametrize("rows", [1, 33, 64])
def test_gate_up(rows):
    x, weight = randn(rows, 4096, dtype=BF16), randn(2 * 1536, 4096, dtype=BF16, scale=1 / 64)
    assert_near(gate_up(x, weight), gate_up_ref(x, weight))


@pytest.mark.parametrize("tokens", [1, 200])
def test_experts(tokens):
    first, second = (randn(16, n, k, dtype=BF16, scale=k**-0.5) for n, k in ((2 * 768, 2048), (2048, 768)))
    x = randn(tokens, 2048, dtype=BF16)
    shares, ids = torch.rand((tokens, 16), device=DEVICE).topk(8, dim=1)
    route = Routing(ids, shares)
    assert_near(grouped_mlp(x, first, second, route), grouped_mlp_ref(x, first, second, route), slack=2.0)


def packed(kind: str, n: int, k: int) -> QuantWeight:
    scales = torch.rand((n, k // 128), device=DEVICE) / 50
    if kind == "int4":
        data = pack_int4(torch.randint(0, 16, (n, k), device=DEVICE), 128)
        zeros = torch.full((n, k // 128), 8, dtype=torch.uint8, device=DEVICE)
        return QuantWeight("int4", data, scales.half(), 1, 128, zeros)
    if kind == "int8":
        return QuantWeight("int8", torch.randint(-99, 99, (n, k), device=DEVICE).to(torch.int8), scales / 9, 1, 128)
    return QuantWeight("fp8", randn(n, k, scale=9.0).to(torch.float8_e4m3fn), scales, 1, 128)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("rows", [1, 100])
def test_quantized_linear(kind, rows):
    weight, x = packed(kind, 1024, 2048), randn(rows, 2048, dtype=BF16, scale=2048**-0.5)
    assert_near(quant_linear(x, weight), quant_linear_ref(x, weight), slack=2.0)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("tokens", [1, 200])
def test_packed_experts(kind, tokens):
    """16 experts of Qwen3-30B-A3B's widths."""
    first, second = packed(kind, 16 * 2 * 768, 2048), packed(kind, 16 * 2048, 768)
    x = randn(tokens, 2048, dtype=BF16, scale=2048**-0.5)
    shares, ids = torch.rand((tokens, 16), device=DEVICE).topk(8, dim=1)
    route = Routing(ids, shares)
    got = grouped_quant_mlp(x, first, second, route)
    assert_near(got, grouped_quant_mlp_ref(x, first, second, route), slack=2.0)


def test_sampling_over_a_real_vocabulary():
    rows, vocab = 64, 151_936
    logits = randn(rows, vocab, scale=3.0)
    params = SampleParams(
        torch.where(torch.arange(rows, device=DEVICE) % 4 == 0, 0.0, 0.9).float(),
        torch.where(torch.arange(rows, device=DEVICE) % 3 == 0, 50, 0).int(),
        torch.where(torch.arange(rows, device=DEVICE) % 2 == 0, 0.9, 1.0).float(),
        torch.zeros(rows, device=DEVICE),
        torch.rand(rows, device=DEVICE),
    )
    tokens = sample(logits, params)
    weights = kept_ref(logits, params)
    assert (weights.gather(1, tokens[:, None]) > 0).all()
    greedy = params.temperature == 0
    assert torch.equal(tokens[greedy], logits[greedy].argmax(1))
