"""One step as flat arrays: what every model runner consumes, torch or native, CPU or GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

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
