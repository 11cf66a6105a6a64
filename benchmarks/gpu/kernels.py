"""Kernels beside what torch.compile makes of their references, and beside flash-attn where it can be imported."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

Clock = Callable[..., float]


def kernel_figures(clock: Clock, device: torch.device) -> dict[str, float]:
    """Milliseconds at shapes of Qwen3-8B; nothing on a CPU, where the interpreter's speed means nothing."""
    if device.type != "cuda":
        return {}
    return {**_rows(clock, device), **_gate_up(clock, device), **_attention(clock, device)}


def _pair(clock: Clock, name: str, ours: Callable[[], Any], theirs: Callable[[], Any], other: str) -> dict[str, float]:
    return {f"{name} ms": clock(ours, 20), f"{name} {other} ms": clock(theirs, 20)}


def _rows(clock: Clock, device: torch.device) -> dict[str, float]:
    from engine.kernels.triton.rms_norm import rms_norm, rms_norm_ref
    from engine.kernels.triton.silu_and_mul import silu_and_mul, silu_and_mul_ref

    x, y = (torch.randn(2048, 4096, device=device, dtype=torch.bfloat16) for _ in range(2))
    weight, wide = x[0].clone(), torch.randn(2048, 24_576, device=device, dtype=torch.bfloat16)
    norm, silu = torch.compile(rms_norm_ref), torch.compile(silu_and_mul_ref)
    return {
        **_pair(
            clock, "rms_norm", lambda: rms_norm(x, weight, 1e-6, y), lambda: norm(x, weight, 1e-6, y), "torch.compile"
        ),
        **_pair(clock, "silu_and_mul", lambda: silu_and_mul(wide), lambda: silu(wide), "torch.compile"),
    }


def _gate_up(clock: Clock, device: torch.device) -> dict[str, float]:
    from engine.kernels.triton.gate_up import gate_up

    weight = torch.randn(24_576, 4096, device=device, dtype=torch.bfloat16) / 64

    def plain(x: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(x, weight).chunk(2, dim=-1)
        return F.silu(gate) * up

    compiled, out = torch.compile(plain), {}
    for rows in (1, 16, 64):
        x = torch.randn(rows, 4096, device=device, dtype=torch.bfloat16)
        out |= _pair(
            clock, f"gate_up x{rows}", lambda x=x: gate_up(x, weight), lambda x=x: compiled(x), "torch.compile"
        )
    return out


def _attention(clock: Clock, device: torch.device) -> dict[str, float]:
    from engine.kernels.triton.attention_ref import PagedKV
    from engine.kernels.triton.decode_attention import decode_attention
    from engine.kernels.triton.prefill_attention import prefill_attention

    size, rows, length = 256, 64, 2048
    pages = length // size
    keys, values = (torch.randn(rows * length, 8, 128, device=device, dtype=torch.bfloat16) for _ in range(2))
    table = torch.arange(rows * pages, device=device, dtype=torch.int32).view(rows, pages)
    lens = torch.full((rows,), length, device=device, dtype=torch.int32)
    q = torch.randn(rows, 32, 128, device=device, dtype=torch.bfloat16)
    long = torch.randn(length, 32, 128, device=device, dtype=torch.bfloat16)
    bounds = torch.tensor([0, length], device=device, dtype=torch.int32)
    kv, one = PagedKV(keys, values, table, lens, size), PagedKV(keys, values, table[:1], lens[:1], size)
    out = {
        "decode_attention ms": clock(lambda: decode_attention(q, kv, 128**-0.5), 20),
        "prefill_attention ms": clock(lambda: prefill_attention(long, bounds, one, 128**-0.5, longest=length), 20),
    }
    if find_spec("flash_attn") is None:
        return out
    from flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache

    paged = (keys.view(-1, size, 8, 128), values.view(-1, size, 8, 128))
    out["decode_attention flash-attn ms"] = clock(
        lambda: flash_attn_with_kvcache(q[:, None], *paged, cache_seqlens=lens, block_table=table, causal=True), 20
    )
    out["prefill_attention flash-attn ms"] = clock(
        lambda: flash_attn_varlen_func(
            long, *paged, bounds, bounds, length, length, causal=True, block_table=table[:1]
        ),
        20,
    )
    return out
