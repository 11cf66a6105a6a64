from __future__ import annotations

import random

import numpy as np
import pytest

from engine.executor.forward_batch import build_forward_batch
from engine.kv_cache.manager import KVCacheManager
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.req import Req


def make_req(kv: KVCacheManager, rng: random.Random, num_tokens: int, num_computed: int, extra: int) -> Req:
    req = Req(str(num_tokens), [rng.randrange(1000) for _ in range(num_tokens)], max_len=10_000)
    req.num_computed = num_computed
    req.sampling = SamplingState(SamplingParams(), seed=0)
    req.lease = kv.lease("", num_tokens + extra)
    assert req.lease is not None
    return req


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_against_one_token_at_a_time(page_size):
    rng = random.Random(page_size)
    kv = KVCacheManager(4000, page_size)
    rows = []
    for _ in range(40):
        total = rng.randrange(1, 80)
        computed = rng.randrange(total)
        known = rng.randrange(1, total - computed + 1)
        draft = tuple(rng.randrange(1000) for _ in range(rng.randrange(5))) if computed + known == total else ()
        rows.append(make_row(make_req(kv, rng, total, computed, 8), known, draft))
    batch = ScheduleBatch(tuple(rows), page_size)
    forward = build_forward_batch(batch)
    token = logit = 0
    for index, row in enumerate(rows):
        assert forward.cu_seqlens[index] == token
        assert forward.seq_lens[index] == row.end
        for place in range(row.num_tokens):
            position = row.start + place
            page = row.req.lease.pages[position // page_size]
            assert forward.input_ids[token] == [*row.req.tokens[row.start : row.known_end], *row.draft][place]
            assert forward.positions[token] == position
            assert forward.page_table[index, position // page_size] == page
            assert forward.slot_mapping[token] == page * page_size + position % page_size
            if place >= row.num_tokens - row.num_logits:
                assert forward.logits_index[logit] == token
                logit += 1
            token += 1
    assert forward.cu_seqlens[-1] == token == batch.num_tokens
    assert len(forward.logits_index) == logit == batch.num_logits
    for array in (forward.input_ids, forward.positions, forward.cu_seqlens, forward.seq_lens):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous
    for array in (forward.page_table, forward.slot_mapping, forward.logits_index):
        assert array.dtype == np.int32
        assert array.flags.c_contiguous


def test_page_table_is_a_snapshot():
    kv = KVCacheManager(100, 4)
    req = make_req(kv, random.Random(0), 8, 7, 0)
    forward = build_forward_batch(ScheduleBatch((make_row(req, 1),), 4))
    before = forward.page_table.copy()
    kv.grow(req.lease, 300)
    req.lease.replace(0, 99)
    np.testing.assert_array_equal(forward.page_table, before)


def test_a_row_without_pages_is_a_bug():
    kv = KVCacheManager(100, 4)
    req = make_req(kv, random.Random(0), 8, 7, 0)
    req.tokens += [1] * 4
    with pytest.raises(AssertionError, match="without the pages"):
        build_forward_batch(ScheduleBatch((make_row(req, 5),), 4))
