from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.attention.backend import AttentionSpec
from engine.attention.kv_pool import KVPool
from engine.attention.registry import NoAttentionBackend, choose_backend
from engine.attention.sdpa import SdpaBackend, padded_length
from engine.executor.forward_batch import ForwardBatch

CPU = torch.device("cpu")


def make_spec(heads=4, kv_heads=2, dim=16, page_size=4, kv_dtype=torch.float32) -> AttentionSpec:
    return AttentionSpec(heads, kv_heads, dim, page_size, torch.float32, kv_dtype, CPU)


def make_batch(lengths: list[tuple[int, int]], page_size: int, num_pages: int, seed: int) -> ForwardBatch:
    """Rows of (tokens already cached, new tokens) on shuffled pages."""
    free = np.random.default_rng(seed).permutation(num_pages).tolist()
    totals = [cached + new for cached, new in lengths]
    table = np.zeros((len(lengths), max(-(-total // page_size) for total in totals)), np.int32)
    for row, total in enumerate(totals):
        for page in range(-(-total // page_size)):
            table[row, page] = free.pop()
    positions = np.concatenate([np.arange(cached, cached + new) for cached, new in lengths]).astype(np.int32)
    owner = np.repeat(np.arange(len(lengths)), [new for _, new in lengths])
    slots = table[owner, positions // page_size] * page_size + positions % page_size
    cu = np.cumsum([0, *(new for _, new in lengths)]).astype(np.int32)
    ids = np.zeros(len(positions), np.int32)
    return ForwardBatch(ids, positions, cu, np.array(totals, np.int32), table, slots, cu[1:] - 1, page_size)


def naive(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """One query [heads, dim] over the keys it may see, in float64, head by head."""
    group = q.shape[0] // keys.shape[1]
    out = []
    for head in range(q.shape[0]):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        weights = torch.softmax(k @ q[head].double() / q.shape[1] ** 0.5, 0)
        out.append(weights @ v)
    return torch.stack(out).float()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (7, 1), (3, 3), (16, 1), (1, 1), (9, 3)])
@pytest.mark.parametrize(("dim", "page_size"), [(16, 4), (64, 1), (80, 16), (128, 256)])
def test_against_float64_loops(heads, kv_heads, dim, page_size):
    spec = make_spec(heads, kv_heads, dim, page_size)
    lengths = [(0, 70), (130, 1), (5, 1), (63, 3), (0, 1), (509, 5)]
    pages = sum(-(-(a + b) // page_size) for a, b in lengths) + 3
    batch = make_batch(lengths, page_size, pages, seed=heads)
    pool = KVPool(spec, num_layers=2, num_pages=pages)
    pool.keys.normal_()
    pool.values.normal_()
    total = len(batch.positions)
    q, k, v = torch.randn(total, heads, dim), torch.randn(total, kv_heads, dim), torch.randn(total, kv_heads, dim)
    untouched = pool.keys[0].clone()
    out = SdpaBackend(spec, pool).plan(batch).forward(1, q, k, v).view(total, heads, dim)
    assert torch.equal(pool.keys[0], untouched)
    for row, (cached, new) in enumerate(lengths):
        slots = np.concatenate([page * page_size + np.arange(page_size) for page in batch.page_table[row]])
        slots = torch.from_numpy(slots[: cached + new])
        keys, values = pool.keys[1][slots], pool.values[1][slots]
        first = batch.cu_seqlens[row]
        assert torch.equal(keys[cached:], k[first : first + new])
        for i in {0, new // 2, new - 1}:
            seen = cached + i + 1
            assert torch.allclose(out[first + i], naive(q[first + i], keys[:seen], values[:seen]), atol=2e-5)


def test_padded_length_grows_and_covers():
    padded = [padded_length(length) for length in range(1, 9000)]
    assert all(value >= length for length, value in enumerate(padded, 1))
    assert padded == sorted(padded)
    assert padded[0] == 64


def test_wide_batches_are_cut_without_changing_bits(monkeypatch):
    spec = make_spec()
    batch = make_batch([(20 + i, 1) for i in range(40)], 4, 700, seed=1)
    pool = KVPool(spec, 1, 700)
    pool.keys.normal_()
    pool.values.normal_()
    q, k, v = torch.randn(40, 4, 16), torch.randn(40, 2, 16), torch.randn(40, 2, 16)
    whole = SdpaBackend(spec, pool).plan(batch).forward(0, q, k, v)
    monkeypatch.setattr("engine.attention.sdpa._GATHER_VALUES", 1)
    assert torch.equal(SdpaBackend(spec, pool).plan(batch).forward(0, q, k, v), whole)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_pool(dtype):
    spec = make_spec(kv_dtype=dtype)
    pool = KVPool(spec, num_layers=3, num_pages=5)
    assert pool.keys.dtype == dtype
    assert not pool.keys.any()
    assert pool.keys.nbytes + pool.values.nbytes == 5 * KVPool.page_bytes(spec, 3)
    pool.keys.normal_()
    pool.values.normal_()
    before = pool.keys.clone()
    pool.copy_page(1, 4)
    assert torch.equal(pool.keys[:, 16:20], before[:, 4:8])
    assert torch.equal(pool.values[:, 16:20], pool.values[:, 4:8])
    assert torch.equal(pool.keys[:, :16], before[:, :16])


def test_registry():
    spec = make_spec()
    assert choose_backend("auto", spec) == ("sdpa", SdpaBackend)
    assert choose_backend("sdpa", spec) == ("sdpa", SdpaBackend)
    with pytest.raises(NoAttentionBackend, match="'other' is not built"):
        choose_backend("other", spec)


def test_the_registry_says_why_each_backend_refuses(monkeypatch):
    monkeypatch.setattr(SdpaBackend, "refuses", staticmethod(lambda spec: f"head_dim {spec.head_dim} is too odd"))
    with pytest.raises(NoAttentionBackend, match="sdpa: head_dim 16 is too odd"):
        choose_backend("auto", make_spec())
