"""Paged attention for one new token per sequence: split over the keys, query heads of a key head together.

Split-KV decoding after Flash-Decoding (Dao et al., 2023) and Lean softmax merging: each program sees a part of one
sequence's keys for all query heads that share a key head; a second kernel joins the parts by their log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from engine.kernels.triton.attention_ref import PagedKV
from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, LOG2E, check_rows, dot, next_power_of_2, row_bucket

_CONFIGS = (
    {"BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 32, "num_warps": 2, "num_stages": 4},
    {"BLOCK_N": 128, "num_warps": 4, "num_stages": 2},
    {"BLOCK_N": 128, "num_warps": 8, "num_stages": 2},
)
_MAX_SPLITS = 32
_PROGRAMS = 264
"""Programs that fill a large GPU twice over; fewer sequences are split further to reach it."""


def num_splits(rows: int, kv_heads: int) -> int:
    """Parts per sequence. It depends on the batch's shape alone, so a CUDA graph may keep it."""
    return max(1, min(_MAX_SPLITS, _PROGRAMS // max(1, rows * kv_heads)))


def decode_attention(q: torch.Tensor, kv: PagedKV, scale: float, *, splits: int = 0) -> torch.Tensor:
    """q [R, heads, dim], one token per row of ``kv`` -> [R, heads, dim] in q's dtype.

    Rows with seq_len 0 (padding of a CUDA graph) read no page and give zeros. ``splits``: 0 for num_splits."""
    check_rows(q, "q")
    rows, heads, dim = q.shape
    kv_heads = kv.keys.shape[1]
    out = torch.empty((rows, heads, dim), dtype=q.dtype, device=q.device)
    if not rows:
        return out
    splits = splits or num_splits(rows, kv_heads)
    parts = torch.empty((rows, heads, splits, dim), dtype=torch.float32, device=q.device)
    lse = torch.empty((rows, heads, splits), dtype=torch.float32, device=q.device)

    def run(config: Mapping[str, int]) -> None:
        _decode_kernel[(rows, kv_heads, splits)](
            q,
            kv.keys,
            kv.values,
            kv.page_table,
            kv.seq_lens,
            parts,
            lse,
            scale,
            dim,
            kv.page_size,
            q.stride(0),
            q.stride(1),
            kv.page_table.stride(0),
            kv_heads,
            splits,
            GROUP=heads // kv_heads,
            BLOCK_G=max(16, next_power_of_2(heads // kv_heads)),
            BLOCK_D=max(16, next_power_of_2(dim)),
            WIDEN=INTERPRETED or q.dtype != kv.keys.dtype,
            **config,
        )

    shape = (row_bucket(rows), heads, kv_heads, dim, kv.page_size, kv.keys.element_size(), splits)
    run(tune_table().pick("decode_attention", shape, _CONFIGS, run))
    _merge_kernel[(rows, heads)](
        parts, lse, out, dim, splits, BLOCK_S=next_power_of_2(splits), BLOCK_D=next_power_of_2(dim), num_warps=2
    )
    return out


@triton.jit(do_not_specialize=["table_stride", "splits"], do_not_specialize_on_alignment=["table_ptr", "lens_ptr"])
def _decode_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    lens_ptr,
    part_ptr,
    lse_ptr,
    scale,
    dim,
    page_size,
    q_stride,
    q_head,
    table_stride,
    kv_heads,
    splits,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lens_ptr + row)
    share = tl.cdiv(tl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = split * share
    end = tl.minimum(begin + share, length)
    members, columns = tl.arange(0, BLOCK_G), tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + members
    inside = columns < dim
    mine = members < GROUP
    held = mine[:, None] & inside[None, :]
    q = tl.load(q_ptr + row * q_stride + heads[:, None] * q_head + columns[None, :], mask=held, other=0.0)
    best, total = tl.full([BLOCK_G], -float("inf"), tl.float32), tl.zeros([BLOCK_G], tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
    for start in range(begin, end, BLOCK_N):
        place = start + tl.arange(0, BLOCK_N)
        seen = place < end
        page = tl.load(table_ptr + row * table_stride + place // page_size, mask=seen, other=0)
        slot = page.to(tl.int64) * page_size + place % page_size
        offsets = (slot[:, None] * kv_heads + kv_head) * dim + columns[None, :]
        visible = seen[:, None] & inside[None, :]
        keys = tl.load(key_ptr + offsets, mask=visible, other=0.0)
        scores = dot(q, tl.trans(keys), tl.zeros([BLOCK_G, BLOCK_N], tl.float32), WIDEN) * (scale * LOG2E)
        scores = tl.where(seen[None, :], scores, -float("inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        decay = tl.exp2(best - new_best)
        weights = tl.exp2(scores - new_best[:, None])
        values = tl.load(value_ptr + offsets, mask=visible, other=0.0)
        total = total * decay + tl.sum(weights, 1)
        if not WIDEN:
            weights = weights.to(values.dtype)
        acc = dot(weights, values, acc * decay[:, None], WIDEN)
        best = new_best
    some = total > 0
    place = (row * kv_heads * GROUP + heads) * splits + split
    total = tl.where(some, total, 1.0)
    acc = acc / total[:, None]
    tl.store(lse_ptr + place, tl.where(some, best + tl.log2(total), -float("inf")), mask=mine)
    tl.store(part_ptr + place[:, None] * dim + columns[None, :], acc, mask=held)


@triton.jit(do_not_specialize=["splits"])
def _merge_kernel(part_ptr, lse_ptr, out_ptr, dim, splits, BLOCK_S: tl.constexpr, BLOCK_D: tl.constexpr):
    head = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + tl.program_id(1)
    parts, columns = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    lse = tl.load(lse_ptr + head * splits + parts, mask=parts < splits, other=-float("inf"))
    best = tl.max(lse)
    best = tl.where(best == -float("inf"), 0.0, best)
    weights = tl.exp2(lse - best)
    total = tl.sum(weights)
    values = tl.load(
        part_ptr + (head * splits + parts[:, None]) * dim + columns[None, :],
        mask=(parts[:, None] < splits) & (columns[None, :] < dim),
        other=0.0,
    )
    out = tl.sum(values * weights[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + head * dim + columns, out.to(out_ptr.dtype.element_ty), mask=columns < dim)
