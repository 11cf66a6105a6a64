"""Every kernel on shapes, layouts and numbers that nobody chose: fixed seeds, each a different mixture.

What is not to be read is NaN (slots, experts and scales of nobody) or far outside (page tables beyond a sequence), so
that touching it shows.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from engine.kernels.quant_weight import QuantWeight, pack_int4, quant_linear_ref
from engine.kernels.triton.attention_ref import PagedKV, paged_attention_ref
from engine.kernels.triton.decode_attention import decode_attention
from engine.kernels.triton.gate_up import gate_up, gate_up_ref
from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp, grouped_mlp_ref
from engine.kernels.triton.grouped_quant import grouped_quant_mlp, grouped_quant_mlp_ref
from engine.kernels.triton.prefill_attention import prefill_attention
from engine.kernels.triton.quant_linear import quant_linear, refuses
from engine.kernels.triton.rms_norm import rms_norm, rms_norm_ref
from engine.kernels.triton.rotary_kv import KVTarget, rotary_kv_write, rotary_kv_write_ref
from engine.kernels.triton.sample import NOTHING, SampleParams, sample, unpack_mask
from engine.kernels.triton.silu_and_mul import silu_and_mul, silu_and_mul_ref
from tests.engine.kernels.triton.cases import DEVICE, TOLERANCE, assert_near, bounds, paged, randn
from tests.engine.kernels.triton.test_sample import assert_drawn

SEEDS = range(8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def sequences(rng: random.Random) -> tuple[list[int], PagedKV, int, torch.dtype]:
    """Lengths, the pool with their keys, query heads, and the queries' dtype."""
    dim, group = rng.choice([64, 80, 128, 256, 40]), rng.randint(1, 16)
    kv_heads = rng.choice([1, 2, 3]) if group < 4 else 1
    size, dtype = rng.choice([1, 16, 64, 256]), rng.choice(DTYPES)
    lengths = [rng.choice([0, 1, 1, 15, 16, 17, 64, 65, rng.randint(1, 99)]) for _ in range(rng.randint(1, 3))]
    kv = paged(
        lengths, kv_heads=kv_heads, dim=dim, page_size=size, dtype=rng.choice([dtype, dtype, torch.bfloat16]), seed=3
    )
    for row, length in enumerate(lengths):
        kv.page_table[row, -(-length // size) :] = -77_777
    for pool in (kv.keys, kv.values):
        pool[pool >= 29_000] = float("nan")
    return lengths, kv, group * kv_heads, dtype


@pytest.mark.parametrize("seed", SEEDS)
def test_attention(seed):
    rng = random.Random(seed)
    lengths, kv, heads, dtype = sequences(rng)
    dim = kv.keys.shape[2]
    slack = 3.0 * max(1.0, TOLERANCE[kv.keys.dtype] / TOLERANCE[dtype] if kv.keys.dtype != dtype else 0.0)
    for counts in ([min(length, 1) for length in lengths], [rng.randint(0, min(length, 30)) for length in lengths]):
        q = randn(sum(counts), heads, dim, dtype=dtype, seed=9)
        expected = paged_attention_ref(q, bounds(counts), kv, dim**-0.5)
        got = prefill_attention(q, bounds(counts), kv, dim**-0.5, longest=max(counts) + rng.choice([0, 70]))
        assert_near(got, expected, slack=slack)
    q = randn(len(lengths), heads, dim, dtype=dtype, seed=8)
    live = torch.tensor([length > 0 for length in lengths], device=DEVICE)
    expected = torch.zeros(q.shape, device=DEVICE)
    expected[live] = paged_attention_ref(q[live], bounds([min(length, 1) for length in lengths]), kv, dim**-0.5)
    assert_near(decode_attention(q, kv, dim**-0.5, splits=rng.choice([0, 1, 3])), expected, slack=slack)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows(seed):
    """x is a part of wider rows, as it is behind a merged linear; the weights are no multiple of a block."""
    rng = random.Random(seed)
    dtype, rows, n = rng.choice(DTYPES), rng.choice([0, 1, 2, 7]), rng.choice([1, 2, 3, 31, 64, 129, 1025])
    wide = randn(rows, 2 * n + 5, dtype=dtype, seed=seed)
    x, weight, residual = wide[:, 2 : 2 + n], randn(n, dtype=dtype, seed=1), randn(rows, n, dtype=dtype, seed=2)
    for other in (None, residual):
        for got, expected in zip(rms_norm(x, weight, 1e-6, other), rms_norm_ref(x, weight, 1e-6, other), strict=True):
            assert_near(got, expected)
    assert_near(silu_and_mul(wide[:, 1 : 1 + 2 * n]), silu_and_mul_ref(wide[:, 1 : 1 + 2 * n]))
    count, k = rng.choice([1, 16, 17, 33, 64, 65]), rng.choice([1, 2, 15, 33, 100])
    x, weight = randn(count, k + 3, dtype=dtype)[:, 1 : 1 + k], randn(2 * min(n, 70), k, dtype=dtype, scale=k**-0.5)
    assert_near(gate_up(x, weight), gate_up_ref(x, weight))


@pytest.mark.parametrize("seed", SEEDS)
def test_rotary(seed):
    rng = random.Random(seed)
    dtype, kept = rng.choice(DTYPES), rng.choice(DTYPES)
    dim, heads, kv_heads, tokens = rng.choice([2, 6, 64, 80, 256]), rng.choice([1, 3, 14]), rng.choice([1, 2, 5]), 4
    parts = tuple(randn(tokens, count, dim, dtype=dtype, seed=count) for count in (heads, kv_heads, kv_heads))
    angles = randn(tokens, dim // 2, seed=5, scale=3.0)
    slots = torch.tensor(rng.sample(range(20), tokens), dtype=rng.choice([torch.int32, torch.int64]), device=DEVICE)
    slots[rng.randrange(tokens)] = -1
    pools = [[torch.full((20, kv_heads, dim), 7.0, dtype=kept, device=DEVICE) for _ in "kv"] for _ in range(2)]
    outs = [
        function(parts, (angles.cos(), angles.sin()), KVTarget(*pool, slots))
        for function, pool in zip((rotary_kv_write, rotary_kv_write_ref), pools, strict=True)
    ]
    assert_near(*outs)
    for got, expected in zip(*pools, strict=True):
        assert_near(got, expected, slack=max(1.0, TOLERANCE[dtype] / TOLERANCE[kept]))


def quantized(rng: random.Random, kind: str, n: int, k: int, group: int, runs: int = 1) -> QuantWeight:
    """``runs``: with inputs in any order, each run of rows may have its own."""
    generator = torch.Generator().manual_seed(n * k)
    scales = ((0.5 + torch.rand((n, -(-k // group)), generator=generator)) / 100).to(rng.choice(DTYPES[::2])).to(DEVICE)
    if kind == "int4":
        data = pack_int4(torch.randint(0, 16, (n, k), generator=generator), group).to(DEVICE)
        zeros = torch.randint(0, 17, scales.shape, generator=generator).to(torch.uint8).to(DEVICE)
        order = torch.stack([torch.randperm(k, generator=generator) for _ in range(runs)]).int().to(DEVICE)
        order = rng.choice([None, order])
        return QuantWeight(kind, data, scales * 8, 1, group, zeros if rng.random() < 0.7 else None, order)
    if kind == "int8":
        values = torch.randint(-127, 128, (n, k), generator=generator).to(torch.int8)
    else:
        values = torch.randn((n, k), generator=generator).mul(60).clamp(-448, 448).to(torch.float8_e4m3fn)
    return QuantWeight(kind, values.to(DEVICE), scales, 1, group)


@pytest.mark.parametrize("kind", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_packed_weights(seed, kind):
    rng = random.Random(seed)
    group = rng.choice([32, 64, 128])
    n, k, dtype = rng.choice([1, 15, 33, 70]), group * rng.randint(1, 3), rng.choice(DTYPES)
    weight = quantized(rng, kind, n, k, group)
    assert refuses(weight) is None
    x = randn(rng.choice([1, 16, 17, 65]), k + 3, dtype=dtype, scale=k**-0.5)[:, 2 : 2 + k]
    bias = rng.choice([None, randn(n, dtype=dtype, seed=4)])
    assert_near(quant_linear(x, weight, bias), quant_linear_ref(x, weight, bias), slack=2.0)


def routes(rng: random.Random, tokens: int, experts: int) -> tuple[Routing, list[int]]:
    """Each token to a few experts of a few; and those that nobody goes to."""
    used = rng.sample(range(experts), rng.randint(1, experts))
    top = rng.randint(1, len(used))
    ids = torch.tensor([rng.sample(used, top) for _ in range(tokens)], dtype=rng.choice([torch.int32, torch.int64]))
    weights = torch.rand((tokens, top), generator=torch.Generator().manual_seed(tokens))
    return Routing(ids.to(DEVICE), weights.to(DEVICE)), sorted(set(range(experts)) - set(ids.flatten().tolist()))


@pytest.mark.parametrize("kind", ["plain", "int8", "int4", "fp8"])
@pytest.mark.parametrize("seed", SEEDS[:6])
def test_experts(seed, kind):
    rng = random.Random(seed)
    tokens, experts, dtype, group = rng.choice([1, 5, 40]), rng.choice([1, 3, 6]), rng.choice(DTYPES), 32
    n, k = (rng.choice([7, 33]), rng.choice([18, 50])) if kind == "plain" else (32 * rng.randint(1, 2), 64)
    x, (route, idle) = randn(tokens, k, dtype=dtype), routes(rng, tokens, experts)
    if kind == "plain":
        parts = (randn(experts, a, b, dtype=dtype, seed=a, scale=b**-0.5) for a, b in ((2 * n, k), (k, n)))
        first, second = (part.index_fill(0, torch.tensor(idle, device=DEVICE).long(), torch.nan) for part in parts)
        assert_near(grouped_mlp(x, first, second, route), grouped_mlp_ref(x, first, second, route), slack=2.0)
        return
    weights = (
        quantized(rng, kind, experts * 2 * n, k, group, experts),
        quantized(rng, kind, experts * k, n, group, experts),
    )
    expected = grouped_quant_mlp_ref(x, *weights, route)
    for weight in weights:
        for expert in idle:
            height = weight.shape[0] // experts
            weight.scales[expert * height : (expert + 1) * height] = float("nan")
    assert_near(grouped_quant_mlp(x, *weights, route), expected, slack=2.0)


def odd_logits(rng: random.Random, rows: int, vocab: int) -> torch.Tensor:
    x = randn(rows, vocab, seed=rng.randint(0, 999), scale=3.0)
    spike = rng.randrange(vocab)
    match rng.choice(["plain", "ties", "constant", "zeros", "spike", "few"]):
        case "ties":
            x = x.round()
        case "constant":
            x = torch.full_like(x, -7.5)
        case "zeros":
            x = torch.where(x > 0, 0.0, -0.0)
        case "spike":
            x = x * 0 - 50
            x[:, spike] = 40
        case "few":
            x[x < 3] = -torch.inf
            x[:, spike] = 0.3
    return x.to(rng.choice(DTYPES))


def odd_mask(rng: random.Random, rows: int, vocab: int) -> torch.Tensor | None:
    """None, one token allowed, or some; bits beyond the vocabulary set. A row may end up with nothing."""
    share = rng.choice([None, 0.0, 0.05, 0.5])
    if share is None:
        return None
    allowed = np.random.default_rng(rng.randint(0, 999)).random((rows, -(-vocab // 32) * 32)) < share
    for row in allowed:
        row[rng.randrange(vocab)] = True
        row[vocab:] = True
    return torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32).copy()).to(DEVICE)


@pytest.mark.parametrize("seed", range(40))
def test_sampling(seed):
    rng = random.Random(seed)
    rows, vocab = rng.randint(1, 3), rng.choice([1, 2, 31, 32, 33, 65, 200])
    logits, mask = odd_logits(rng, rows, vocab), odd_mask(rng, rows, vocab)

    def column(choices: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([rng.choice(choices) for _ in range(rows)], dtype=dtype, device=DEVICE)

    settings = SampleParams(
        column([0.0, 1e-6, 0.5, 1.0, 2.0, 1e6], torch.float32),
        column([0, 1, 2, vocab - 1, vocab, vocab + 1, 2**31 - 1], torch.int32),
        column([1.0, 0.0, 1e-9, 0.1, 0.9, 0.999999], torch.float32),
        column([0.0, 0.0, 1.0, 0.5, 1e-9], torch.float32),
        column([0.0, 0.5, 1 - 2**-24, rng.random()], torch.float32),
        mask,
    )
    if mask is not None:
        seen = logits.float().masked_fill(~unpack_mask(mask, vocab), -torch.inf).amax(1) > -torch.inf
        got = sample(logits, settings)
        assert (got[~seen] == NOTHING).all()
        if not seen.all():
            return
    assert_drawn(logits, settings)
