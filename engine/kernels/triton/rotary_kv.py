"""Rotary embedding of queries and keys, and the write of keys and values into their KV slots, in one launch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine.kernels.triton.common import check_rows, next_power_of_2


@dataclass(frozen=True, slots=True)
class KVTarget:
    """One layer's pool [slots, kv_heads, dim] twice, and where this step's tokens go: ``slots`` [T] int32 or int64.

    A negative slot belongs to a padding row: nothing is written for it."""

    keys: torch.Tensor
    values: torch.Tensor
    slots: torch.Tensor


def rotate_ref(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, dim] with cos and sin [T, dim / 2]: halves rotated as GPT-NeoX does (arXiv 2104.09864)."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def rotary_kv_write_ref(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rope: tuple[torch.Tensor, torch.Tensor],
    target: KVTarget,
) -> torch.Tensor:
    q, k, v = qkv
    live = target.slots >= 0
    slots = target.slots[live].long()
    target.keys[slots] = rotate_ref(k, *rope)[live].to(target.keys.dtype)
    target.values[slots] = v[live].to(target.values.dtype)
    return rotate_ref(q, *rope)


def rotary_kv_write(
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    rope: tuple[torch.Tensor, torch.Tensor],
    target: KVTarget,
) -> torch.Tensor:
    """q [T, heads, dim], k and v [T, kv_heads, dim], which may be views of one matrix; rope: cos and sin
    [T, dim / 2] in float32. Returns the rotated q; k (rotated) and v go to their slots in the pool's dtype."""
    q, k, v = (check_rows(part, name) for part, name in zip(qkv, "qkv"))
    cos, sin = (table.contiguous() for table in rope)
    tokens, heads, dim = q.shape
    kv_heads = k.shape[1]
    out = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    if tokens:
        _rotary_kv_kernel[(tokens, heads + kv_heads)](
            q,
            k,
            v,
            out,
            cos,
            sin,
            target.keys,
            target.values,
            target.slots,
            heads,
            kv_heads,
            dim // 2,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
            BLOCK=next_power_of_2(dim // 2),
            num_warps=1,
        )
    return out


@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rotary_kv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    out_ptr,
    cos_ptr,
    sin_ptr,
    key_pool,
    value_pool,
    slots_ptr,
    heads,
    kv_heads,
    half,
    q_stride,
    q_head,
    k_stride,
    k_head,
    v_stride,
    v_head,
    BLOCK: tl.constexpr,
):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < half
    cos = tl.load(cos_ptr + token * half + columns, mask=inside, other=0.0)
    sin = tl.load(sin_ptr + token * half + columns, mask=inside, other=0.0)
    if head < heads:
        source = q_ptr + token * q_stride + head * q_head
        target = out_ptr + (token * heads + head) * 2 * half
        first = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + half + columns, mask=inside, other=0.0).to(tl.float32)
        kind = out_ptr.dtype.element_ty
        tl.store(target + columns, (first * cos - second * sin).to(kind), mask=inside)
        tl.store(target + half + columns, (second * cos + first * sin).to(kind), mask=inside)
    else:
        slot = tl.load(slots_ptr + token).to(tl.int64)
        if slot >= 0:
            row = head - heads
            source = k_ptr + token * k_stride + row * k_head
            place = (slot * kv_heads + row) * 2 * half
            first = tl.load(source + columns, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(source + half + columns, mask=inside, other=0.0).to(tl.float32)
            # through k's dtype first: the pool may be wider, and the reference rounds there
            low = (first * cos - second * sin).to(k_ptr.dtype.element_ty)
            high = (second * cos + first * sin).to(k_ptr.dtype.element_ty)
            kind = key_pool.dtype.element_ty
            tl.store(key_pool + place + columns, low.to(kind), mask=inside)
            tl.store(key_pool + place + half + columns, high.to(kind), mask=inside)
            for part in range(2):
                offset = part * half + columns
                value = tl.load(v_ptr + token * v_stride + row * v_head + offset, mask=inside, other=0.0)
                tl.store(value_pool + place + offset, value.to(value_pool.dtype.element_ty), mask=inside)
