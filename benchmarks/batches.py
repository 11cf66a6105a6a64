"""One step's batch for a benchmark that calls an executor without a scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.executor.forward_batch import ForwardBatch


def batch_of(rows: Sequence[tuple[int, int]], page_size: int, vocab_size: int, *, row_pages: int = 0) -> ForwardBatch:
    """Rows of (tokens in the cache, new tokens), each on pages of its own, with logits of each row's last token.

    row_pages: pages between the first of two rows, 0 for as many as the longest row needs.
    """
    counts = [count for _, count in rows]
    ends = np.array([start + count for start, count in rows], np.int32)
    pages = row_pages or -(-int(ends.max()) // page_size)
    table = np.arange(len(rows) * pages, dtype=np.int32).reshape(len(rows), pages)
    positions = np.concatenate([np.arange(start, start + count, dtype=np.int32) for start, count in rows])
    owner = np.repeat(np.arange(len(rows)), counts)
    cu_seqlens = np.cumsum([0, *counts]).astype(np.int32)
    return ForwardBatch(
        input_ids=(np.arange(len(positions)) * 7919 % vocab_size).astype(np.int32),
        positions=positions,
        cu_seqlens=cu_seqlens,
        seq_lens=ends,
        page_table=table,
        slot_mapping=(table[owner, positions // page_size] * page_size + positions % page_size).astype(np.int32),
        logits_index=cu_seqlens[1:] - 1,
        page_size=page_size,
    )
