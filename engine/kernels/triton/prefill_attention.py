"""Paged attention for rows of any number of new tokens: prompt chunks, drafts and decodes in one launch.

Online softmax after FlashAttention-2 (arXiv 2307.08691); keys come through the page table, this step's own included.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import triton
import triton.language as tl

from engine.kernels.triton.attention_ref import PagedKV
from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, LOG2E, cdiv, check_rows, dot, next_power_of_2, row_bucket

_CONFIGS = (
    {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3},
    {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 8, "num_stages": 2},
    {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3},
    {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2},
)


def prefill_attention(
    q: torch.Tensor, cu_seqlens: torch.Tensor, kv: PagedKV, scale: float, *, longest: int
) -> torch.Tensor:
    """q [T, heads, dim]; row r owns tokens cu_seqlens[r]:cu_seqlens[r+1] (int32 [R+1]), the last ones of its
    sequence; ``longest`` is the most tokens of a row. Returns [T, heads, dim] in q's dtype."""
    check_rows(q, "q")
    tokens, heads, dim = q.shape
    kv_heads = kv.keys.shape[1]
    out = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    rows = kv.seq_lens.shape[0]
    if not tokens:
        return out

    def run(config: Mapping[str, int]) -> None:
        _prefill_kernel[(cdiv(longest, config["BLOCK_M"]), heads, rows)](
            q,
            kv.keys,
            kv.values,
            kv.page_table,
            kv.seq_lens,
            cu_seqlens,
            out,
            scale,
            dim,
            kv.page_size,
            q.stride(0),
            q.stride(1),
            kv.page_table.stride(0),
            kv_heads,
            GROUP=heads // kv_heads,
            BLOCK_D=max(16, next_power_of_2(dim)),
            WIDEN=INTERPRETED or q.dtype != kv.keys.dtype,
            **config,
        )

    shape = (row_bucket(longest), heads, kv_heads, dim, kv.page_size, kv.keys.element_size())
    run(tune_table().pick("prefill_attention", shape, _CONFIGS, run))
    return out


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["table_ptr", "lens_ptr", "bounds_ptr"])
def _prefill_kernel(
    q_ptr,
    key_ptr,
    value_ptr,
    table_ptr,
    lens_ptr,
    bounds_ptr,
    out_ptr,
    scale,
    dim,
    page_size,
    q_stride,
    q_head,
    table_stride,
    kv_heads,
    GROUP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    WIDEN: tl.constexpr,
):
    block, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    first, last = tl.load(bounds_ptr + row), tl.load(bounds_ptr + row + 1)
    count = last - first
    if block * BLOCK_M < count:
        length = tl.load(lens_ptr + row)
        kv_head = head // GROUP
        index, columns = block * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
        token = (first + index).to(tl.int64)
        inside, real = columns < dim, index < count
        own = length - count + index
        held = real[:, None] & inside[None, :]
        q = tl.load(q_ptr + token[:, None] * q_stride + head * q_head + columns[None, :], mask=held, other=0.0)
        best = tl.full([BLOCK_M], -float("inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        end = tl.minimum(length, length - count + (block + 1) * BLOCK_M)
        for start in range(0, end, BLOCK_N):
            place = start + tl.arange(0, BLOCK_N)
            seen = place < end
            page = tl.load(table_ptr + row * table_stride + place // page_size, mask=seen, other=0)
            slot = page.to(tl.int64) * page_size + place % page_size
            offsets = (slot[:, None] * kv_heads + kv_head) * dim + columns[None, :]
            visible = seen[:, None] & inside[None, :]
            keys = tl.load(key_ptr + offsets, mask=visible, other=0.0)
            scores = dot(q, tl.trans(keys), tl.zeros([BLOCK_M, BLOCK_N], tl.float32), WIDEN) * (scale * LOG2E)
            scores = tl.where(seen[None, :] & (place[None, :] <= own[:, None]), scores, -float("inf"))
            new_best = tl.maximum(best, tl.max(scores, 1))
            decay = tl.exp2(best - new_best)
            weights = tl.exp2(scores - new_best[:, None])
            values = tl.load(value_ptr + offsets, mask=visible, other=0.0)
            total = total * decay + tl.sum(weights, 1)
            if not WIDEN:
                weights = weights.to(values.dtype)
            acc = dot(weights, values, acc * decay[:, None], WIDEN)
            best = new_best
        acc = acc / tl.where(total > 0, total, 1.0)[:, None]
        place = (token[:, None] * (kv_heads * GROUP) + head) * dim + columns[None, :]
        tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=held)
