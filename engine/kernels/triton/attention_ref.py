"""Attention over paged KV in plain torch: what the decode and the prefill kernel must equal."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class PagedKV:
    """One layer's keys and values [slots, kv_heads, dim], and the sequences in them.

    page_table [R, P] int32 physical pages of each row in order, seq_lens [R] int32 tokens of each sequence that
    are in the pool (this step's included), page_size tokens per page.
    """

    keys: torch.Tensor
    values: torch.Tensor
    page_table: torch.Tensor
    seq_lens: torch.Tensor
    page_size: int


def paged_attention_ref(q: torch.Tensor, cu_seqlens: torch.Tensor, kv: PagedKV, scale: float) -> torch.Tensor:
    """q [T, heads, dim]; row r owns tokens cu_seqlens[r]:cu_seqlens[r+1], the last ones of its sequence. Each
    attends to its sequence up to itself. Returns [T, heads, dim] in float32; zero where a row has no key."""
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    group = q.shape[1] // kv.keys.shape[1]
    bounds, lengths = cu_seqlens.tolist(), kv.seq_lens.tolist()
    for row, length in enumerate(lengths):
        first, last = bounds[row], bounds[row + 1]
        if first == last or length == 0:
            continue
        positions = torch.arange(length, device=q.device)
        slots = kv.page_table[row, positions // kv.page_size].long() * kv.page_size + positions % kv.page_size
        keys = kv.keys[slots].float().repeat_interleave(group, dim=1)
        values = kv.values[slots].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q[first:last].float(), keys) * scale
        own = torch.arange(length - (last - first), length, device=q.device)
        scores = scores.masked_fill(positions[None, None, :] > own[None, :, None], -torch.inf)
        out[first:last] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
    return out
