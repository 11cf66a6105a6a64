"""One step as flat arrays: what every model runner consumes, torch or native, CPU or GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from engine.scheduler.batch import ScheduleBatch

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """R rows with T new tokens in all, prompt chunks, decodes and drafts alike (varlen).

    input_ids     [T] token ids, row after row
    positions     [T] position of each token in its sequence, from 0
    cu_seqlens    [R+1] row r owns tokens cu_seqlens[r]:cu_seqlens[r+1]
    seq_lens      [R] length of each sequence after this step (cached + new)
    page_table    [R, P] physical pages of each row in order, padded with 0 beyond ceil(seq_len / page_size)
    slot_mapping  [T] physical KV slot of each new token: page * page_size + offset
    logits_index  [L] indices into T of the tokens whose logits are wanted, ascending
    page_size     tokens per page
    """

    input_ids: IntArray
    positions: IntArray
    cu_seqlens: IntArray
    seq_lens: IntArray
    page_table: IntArray
    slot_mapping: IntArray
    logits_index: IntArray
    page_size: int


def build_forward_batch(batch: ScheduleBatch) -> ForwardBatch:
    """Flatten a step's decision. Row ``r`` of the result is ``batch.rows[r]``."""
    rows, page_size = batch.rows, batch.page_size
    ids: list[int] = []
    for row in rows:
        ids += row.req.tokens[row.start : row.start + row.num_tokens - len(row.draft)]
        ids += row.draft
    lengths = np.array([row.num_tokens for row in rows], np.int32)
    starts = np.array([row.start for row in rows], np.int32)
    cu_seqlens = _offsets(lengths)
    flat = np.arange(len(ids), dtype=np.int32)
    positions = np.repeat(starts - cu_seqlens[:-1], lengths) + flat
    seq_lens = starts + lengths
    page_table = _page_table(batch, seq_lens)
    pages = page_table[np.repeat(np.arange(len(rows), dtype=np.int32), lengths), positions // page_size]
    num_logits = np.array([row.num_logits for row in rows], np.int32)
    logit_ends = _offsets(num_logits)
    logits_index = np.repeat(cu_seqlens[1:] - logit_ends[1:], num_logits) + np.arange(logit_ends[-1], dtype=np.int32)
    return ForwardBatch(
        input_ids=np.array(ids, np.int32),
        positions=positions,
        cu_seqlens=cu_seqlens,
        seq_lens=seq_lens,
        page_table=page_table,
        slot_mapping=pages * np.int32(page_size) + positions % page_size,
        logits_index=logits_index,
        page_size=page_size,
    )


def _offsets(lengths: IntArray) -> IntArray:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _page_table(batch: ScheduleBatch, seq_lens: IntArray) -> IntArray:
    counts = (-(-seq_lens // batch.page_size)).tolist()
    table = np.zeros((len(counts), max(counts)), np.int32)
    for index, (row, count) in enumerate(zip(batch.rows, counts, strict=True)):
        lease = row.req.lease
        if lease is None or len(lease.pages) < count:
            raise AssertionError(f"{row.req!r} was scheduled without the pages it needs")
        table[index, :count] = lease.table[:count]
    return table
