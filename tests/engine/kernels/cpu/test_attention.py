"""Paged attention against float64, and bit-identity of a query under everything that may surround it."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.cpu.loader import load
from engine.kernels.cpu.model import NativeModelError
from tests.engine.kernels.cpu.decoder import AttentionModel, make_batch, reference_attention

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "int8": 8e-2}
KV = ("float32", "bfloat16", "int8")
PAYLOAD_NANS = np.array([0x7FC00001, 0x7FFFFFFF, 0xFFFF8000, 0x7FBFFFFF], np.uint32).view(np.float32)
"""As computing makes it, a NaN has only its first mantissa bit; others may come out of a file."""


def isa_levels():
    return range(load().cg_isa_best() + 1)


def pages_for(rng, tokens, page_size):
    count = -(-tokens // page_size)
    return (rng.permutation(count) + 1).tolist(), count + 2


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize(("heads", "kv_heads"), [(14, 2), (8, 1), (3, 3), (12, 4), (16, 2)])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
def test_prefill_equals_the_reference(kv, heads, kv_heads, head_dim):
    rng = np.random.default_rng(head_dim + heads)
    tokens = 291
    for isa, page_size in zip(isa_levels(), (16, 1, 64), strict=False):
        pages, count = pages_for(rng, tokens, page_size)
        with AttentionModel(heads, kv_heads, head_dim, kv=kv, page_size=page_size, num_pages=count, isa=isa) as model:
            qkv = model.random(rng, tokens)
            out = model.run([(0, tokens)], [pages], qkv)
            assert np.abs(out - reference_attention(model, qkv)).max() < TOLERANCE[kv]


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(14, 2, 64), (7, 1, 8), (3, 3, 64), (4, 1, 128)])
def test_chunks_pages_and_decode_do_not_change_a_bit(kv, heads, kv_heads, head_dim):
    rng = np.random.default_rng(1)
    tokens, isas = 600, isa_levels()
    qkv = None
    for isa in isas:
        expected = None
        for page_size, chunk in ((16, 600), (1, 64), (64, 16), (16, 7), (8, 1), (1, 1), (64, 600)):
            pages, count = pages_for(rng, tokens, page_size)
            with AttentionModel(
                heads, kv_heads, head_dim, kv=kv, page_size=page_size, num_pages=count, isa=isa
            ) as model:
                qkv = model.random(rng, tokens) if qkv is None else qkv
                # small chunks for the end only: the test should take seconds
                first = 0 if chunk > 7 else 500
                parts = [model.run([(0, first)], [pages], qkv[:first])] if first else []
                for start in range(first, tokens, chunk):
                    part = qkv[start : start + chunk]
                    parts.append(model.run([(start, len(part))], [pages], part))
            out = np.concatenate(parts)
            expected = out if expected is None else expected
            assert np.array_equal(out, expected), (isa, page_size, chunk)


@pytest.mark.parametrize("kv", KV)
def test_neighbours_in_the_batch_do_not_change_a_bit(kv):
    rng = np.random.default_rng(2)
    lengths = [1, 2, 15, 16, 17, 255, 256, 257, 700, 33, 90]
    tables, page = [], 0
    for length in lengths:
        need = -(-length // 16)
        tables.append(list(range(page, page + need)))
        page += need
    with AttentionModel(14, 2, 64, kv=kv, num_pages=page) as model:
        rows = [model.random(rng, length) for length in lengths]
        alone = [model.run([(0, n)], [t], x) for n, t, x in zip(lengths, tables, rows, strict=True)]
        model.clear()
        order = rng.permutation(len(lengths)).tolist()
        # everything but the last token at once, then the last tokens at once beside one prompt chunk
        spans = [(0, lengths[i] - 1) for i in order if lengths[i] > 1]
        rest = [i for i in order if lengths[i] > 1]
        out = model.run(spans, [tables[i] for i in rest], np.concatenate([rows[i][:-1] for i in rest]))
        ends = np.cumsum([n for _, n in spans])
        for i, part in zip(rest, np.split(out, ends[:-1]), strict=True):
            assert np.array_equal(part, alone[i][:-1])
        out = model.run(
            [(lengths[i] - 1, 1) for i in order], [tables[i] for i in order], np.stack([rows[i][-1] for i in order])
        )
        for i, row in zip(order, out, strict=True):
            assert np.array_equal(row, alone[i][-1])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_and_splits_do_not_change_a_bit(threads):
    rng = np.random.default_rng(3)
    tokens = 1500
    pages = list(range(-(-tokens // 16)))
    with AttentionModel(4, 1, 64, num_pages=len(pages), threads=threads) as model:
        qkv = model.random(rng, tokens)
        whole = model.run([(0, tokens)], [pages], qkv)
        for position in (255, 256, 511, 512, 1279, 1499):
            again = model.run([(position, 1)], [pages], qkv[position : position + 1])
            assert np.array_equal(again[0], whole[position])


def test_stale_values_in_a_page_do_not_reach_its_next_owner():
    rng = np.random.default_rng(4)
    with AttentionModel(4, 2, 64, num_pages=4) as model:
        qkv = model.random(rng, 9)
        clean = model.run([(0, 9)], [[1]], qkv)
        model.run([(0, 16)], [[1]], np.full((16, qkv.shape[1]), np.nan, np.float32))
        assert np.array_equal(model.run([(0, 9)], [[1]], qkv), clean)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize(
    ("part", "bad"), [("key", np.nan), *(("key", x) for x in PAYLOAD_NANS), ("all", np.nan), ("all", np.inf)]
)
def test_a_key_that_is_not_finite_shows_in_all_that_see_it(kv, bad, part):
    """Values are made finite when they are written, keys tell: a block that holds one must not be left out."""
    rng = np.random.default_rng(7)
    tokens, place, heads, kv_heads, dim = 1300, 300, 4, 2, 64
    columns = slice(heads * dim, heads * dim + 1) if part == "key" else slice(None)
    first_group = slice(0, heads // kv_heads * dim)
    pages = list(range(-(-tokens // 16)))
    for isa in isa_levels():
        with AttentionModel(heads, kv_heads, dim, kv=kv, num_pages=len(pages), isa=isa, threads=2) as model:
            qkv = model.random(rng, tokens)
            clean = model.run([(0, tokens)], [pages], qkv)
            model.clear()
            qkv[place, columns] = bad
            out = model.run([(0, tokens)], [pages], qkv)
            assert np.array_equal(out[:place], clean[:place])
            assert not np.isfinite(out[place:, first_group]).any()
            last = model.run([(tokens - 1, 1)], [pages], qkv[-1:])
            assert not np.isfinite(last[:, first_group]).any()


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("bad", [np.nan, *PAYLOAD_NANS, np.inf])
def test_a_query_that_is_not_finite_shows_in_its_own_head_and_nowhere_else(kv, bad):
    rng = np.random.default_rng(8)
    tokens, heads, dim = 40, 2, 64
    for isa in isa_levels():
        with AttentionModel(heads, 1, dim, kv=kv, isa=isa) as model:
            qkv = model.random(rng, tokens)
            clean = model.run([(0, tokens)], [[0, 1, 2]], qkv)
            qkv[20, dim + 3] = bad
            out = model.run([(0, tokens)], [[0, 1, 2]], qkv)
            assert not np.isfinite(out[20, dim:]).any()
            out[20, dim:] = clean[20, dim:]
            assert np.array_equal(out, clean)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("size", [1e16, 1e30])
def test_scores_too_low_to_weigh_let_no_earlier_owner_in(kv, size):
    """Scores of -1e33, or of minus infinity: there is no result, which shows, and what lies behind is no substitute."""
    rng = np.random.default_rng(9)
    tokens, heads, kv_heads, dim = 5, 4, 2, 64
    for isa in isa_levels():
        with AttentionModel(heads, kv_heads, dim, kv=kv, num_pages=4, isa=isa) as model:
            qkv = model.random(rng, tokens)
            qkv[:, : heads * dim] = size
            qkv[:, heads * dim : (heads + kv_heads) * dim] = -size
            model.run([(0, 16)], [[1]], model.random(rng, 16))
            assert not np.isfinite(model.run([(0, tokens)], [[1]], qkv)).any(), isa


def test_copy_page_copies_every_layer():
    rng = np.random.default_rng(5)
    with AttentionModel(4, 2, 64, num_pages=8) as model:
        qkv = model.random(rng, 20)
        for layer in (0, 1):
            model.run([(0, 10)], [[1]], qkv[:10], layer)
        model.model.copy_page(1, 5)
        for layer in (0, 1):
            kept = model.run([(10, 10)], [[1, 2]], qkv[10:], layer)
            assert np.array_equal(model.run([(10, 10)], [[5, 3]], qkv[10:], layer), kept)
        with pytest.raises(NativeModelError):
            model.model.copy_page(0, 8)


@pytest.mark.parametrize(
    ("span", "pages", "change"),
    [
        ((0, 3), [9], {}),
        ((0, 3), [-1], {}),
        ((0, 3), [1], {"slot_mapping": [16, 17, 40]}),
        ((0, 3), [1], {"positions": [0, 1, 3]}),
        ((0, 3), [1], {"seq_lens": [400]}),
        ((0, 3), [1], {"input_ids": [0, 32, 0]}),
        ((0, 3), [1], {"input_ids": [0, -1, 0]}),
        ((0, 3), [1], {"cu_seqlens": [0, 4]}),
        ((0, 3), [1], {"logits_index": [3]}),
    ],
)
def test_a_batch_out_of_range_is_refused(span, pages, change):
    with AttentionModel(4, 2, 64, num_pages=8) as model:
        batch = make_batch([span], [pages], 16)
        fields = {name: getattr(batch, name) for name in batch.__slots__}
        fields.update({name: np.array(value, np.int32) for name, value in change.items()})
        with pytest.raises(NativeModelError, match="out of range"):
            model.model.attention(0, type(batch)(**fields), np.zeros((3, 8 * 64), np.float32))


def test_head_dims_beyond_the_kernels_are_refused():
    with pytest.raises(NativeModelError):
        AttentionModel(1, 1, 1024)
    with pytest.raises(NativeModelError):
        AttentionModel(3, 2, 64)
