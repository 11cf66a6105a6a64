"""Kernels that work row by row: silu_and_mul, RMSNorm with residual, rotary embedding with the KV write."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.triton.rms_norm import rms_norm, rms_norm_ref
from engine.kernels.triton.rotary_kv import KVTarget, rotary_kv_write, rotary_kv_write_ref
from engine.kernels.triton.silu_and_mul import silu_and_mul, silu_and_mul_ref
from tests.engine.kernels.triton.cases import DEVICE, assert_near, randn

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 48), (5, 1000), (2, 2500)])
def test_silu_and_mul(rows, width, dtype):
    x = randn(rows, 2 * width, dtype=dtype, scale=4.0)
    assert_near(silu_and_mul(x), silu_and_mul_ref(x))


def test_silu_of_large_values_stays_finite():
    x = torch.tensor([[-300.0, 300.0, -90.0, 0.0, 1.0, 2.0, 3.0, 4.0]], device=DEVICE)
    assert_near(silu_and_mul(x), silu_and_mul_ref(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 64), (4, 80), (2, 1000), (2, 4096)])
@pytest.mark.parametrize("residual", [False, True])
def test_rms_norm(rows, width, residual, dtype):
    x, weight = randn(rows, width, dtype=dtype), randn(width, dtype=dtype, seed=1)
    other = randn(rows, width, dtype=dtype, seed=2) if residual else None
    out, total = rms_norm(x, weight, 1e-6, other)
    expected, sums = rms_norm_ref(x, weight, 1e-6, other)
    assert_near(out, expected)
    assert_near(total, sums)


def test_rms_norm_of_heads_that_are_views():
    """q and k norm of Qwen3: heads inside one matrix of q, k and v."""
    qkv = randn(5, 8 * 64)
    heads = qkv[:, : 3 * 64].view(5, 3, 64)
    weight = randn(64, seed=3)
    assert_near(rms_norm(heads, weight, 1e-5)[0], rms_norm_ref(heads, weight, 1e-5)[0])


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (7, 1), (6, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_and_kv_write(dim, heads, kv_heads, dtype):
    """q, k and v as views of one matrix; one token is padding and must leave the pool alone."""
    tokens = 4
    qkv = randn(tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    q, k, v = qkv.split_with_sizes([heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    parts = (q.view(tokens, heads, dim), k.view(tokens, kv_heads, dim), v.view(tokens, kv_heads, dim))
    angles = randn(tokens, dim // 2, seed=5, scale=3.0)
    rope = (angles.cos(), angles.sin())
    slots = torch.tensor([9, -1, 0, 4], dtype=torch.int32, device=DEVICE)
    pools = [[torch.full((12, kv_heads, dim), 7.0, dtype=dtype, device=DEVICE) for _ in "kv"] for _ in range(2)]
    targets = [KVTarget(keys, values, slots) for keys, values in pools]
    assert_near(rotary_kv_write(parts, rope, targets[0]), rotary_kv_write_ref(parts, rope, targets[1]))
    for got, expected in zip(*pools, strict=True):
        assert_near(got, expected)
        assert (got[[1, 2, 3, 5]] == 7.0).all()


def test_rotary_writes_into_a_pool_of_another_dtype():
    parts = (randn(2, 2, 16), randn(2, 1, 16, seed=1), randn(2, 1, 16, seed=2))
    angles = randn(2, 8, seed=3)
    slots = torch.tensor([1, 2], device=DEVICE)
    pools = [[torch.zeros((4, 1, 16), dtype=torch.bfloat16, device=DEVICE) for _ in "kv"] for _ in range(2)]
    for function, (keys, values) in zip((rotary_kv_write, rotary_kv_write_ref), pools, strict=True):
        function(parts, (angles.cos(), angles.sin()), KVTarget(keys, values, slots))
    for got, expected in zip(*pools, strict=True):
        assert_near(got, expected)
