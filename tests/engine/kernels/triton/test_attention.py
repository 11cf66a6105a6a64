"""Paged attention kernels against plain torch: head counts, head sizes, page sizes, empty and long rows."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.triton.attention_ref import paged_attention_ref
from engine.kernels.triton.decode_attention import decode_attention, num_splits
from engine.kernels.triton.prefill_attention import prefill_attention
from tests.engine.kernels.triton.cases import DEVICE, assert_near, bounds, paged, randn

HEADS = [(1, 1), (7, 7), (8, 2), (14, 2), (16, 1), (9, 3)]
"""(query heads, key heads): groups of 1 to 16, odd counts."""
DTYPES = [torch.float32, torch.bfloat16]


def decode(lengths, *, heads=4, kv_heads=2, dim=64, page_size=16, dtype=torch.float32, splits=0, kv_dtype=None):
    kv = paged(lengths, kv_heads=kv_heads, dim=dim, page_size=page_size, dtype=kv_dtype or dtype)
    q = randn(len(lengths), heads, dim, dtype=dtype, seed=9)
    got = decode_attention(q, kv, dim**-0.5, splits=splits)
    counts = [min(length, 1) for length in lengths]
    live = torch.tensor([length > 0 for length in lengths], device=DEVICE)
    expected = torch.zeros(got.shape, device=DEVICE)
    expected[live] = paged_attention_ref(q[live], bounds(counts), kv, dim**-0.5)
    assert_near(got, expected)


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_decode_head_counts(heads, kv_heads):
    decode([37, 0, 5], heads=heads, kv_heads=kv_heads, splits=3)


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decode_head_sizes(dim, dtype):
    decode([70, 3], dim=dim, dtype=dtype, splits=2)


@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
def test_decode_page_sizes(page_size):
    decode([1, 16, 17, 64, 65, 300], page_size=page_size, splits=2)


@pytest.mark.parametrize("splits", [1, 2, 9])
def test_decode_splits(splits):
    """More splits than there are keys leave some of them empty."""
    decode([1, 63, 64, 65, 200, 0], splits=splits)


def test_decode_of_a_long_row_beside_short_ones():
    decode([1500, 1, 2], heads=2, kv_heads=1, splits=4)


def test_decode_with_a_pool_of_another_dtype():
    decode([40, 9], kv_dtype=torch.bfloat16)


def test_splits_depend_on_the_shape_alone_and_are_bounded():
    assert num_splits(1, 8) == 32
    assert num_splits(256, 8) == 1
    assert num_splits(0, 8) >= 1


def prefill(rows, *, heads=4, kv_heads=2, dim=64, page_size=16, dtype=torch.float32):
    """``rows``: (tokens cached before, new tokens)."""
    kv = paged([old + new for old, new in rows], kv_heads=kv_heads, dim=dim, page_size=page_size, dtype=dtype)
    counts = [new for _, new in rows]
    q = randn(sum(counts), heads, dim, dtype=dtype, seed=9)
    got = prefill_attention(q, bounds(counts), kv, dim**-0.5, longest=max(counts, default=0))
    assert_near(got, paged_attention_ref(q, bounds(counts), kv, dim**-0.5))


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
def test_prefill_head_counts(heads, kv_heads):
    prefill([(0, 20), (17, 1), (3, 5)], heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("dim", [64, 80, 128, 256])
@pytest.mark.parametrize("dtype", DTYPES)
def test_prefill_head_sizes(dim, dtype):
    prefill([(10, 30), (0, 70)], heads=2, kv_heads=1, dim=dim, dtype=dtype)


@pytest.mark.parametrize("page_size", [1, 16, 64, 256])
def test_prefill_page_sizes(page_size):
    prefill([(0, 1), (15, 1), (16, 17), (250, 20)], heads=2, kv_heads=1, page_size=page_size)


def test_prefill_with_empty_rows_and_more_than_a_block():
    prefill([(0, 0), (5, 0), (0, 130), (200, 70), (0, 0)], heads=2, kv_heads=2)


def test_prefill_of_nothing():
    prefill([(4, 0)])


def test_prefill_rows_of_one_token_equal_the_decode_kernel():
    kv = paged([50, 7, 128], kv_heads=2, dim=64, page_size=16)
    q = randn(3, 6, 64)
    one = prefill_attention(q, bounds([1, 1, 1]), kv, 0.125, longest=1)
    assert_near(one, decode_attention(q, kv, 0.125, splits=2).float())
