"""RMSNorm with the residual added before it, in one pass over memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels.triton.common import check_rows, next_power_of_2


def rms_norm_ref(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    total = x if residual is None else x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight, total


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, n] or [T, heads, n] -> ``(norm(x + residual) * weight, x + residual)``; without residual the second
    is x itself. The mean square is taken in float32 of the sum as it is stored."""
    n = x.shape[-1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    total = torch.empty_like(out) if residual is not None else x
    rows = x.numel() // n
    if rows:
        heads = x.shape[1] if x.dim() == 3 else 1
        head_stride = x.stride(1) if x.dim() == 3 else 0
        check_rows(x, "x")
        block = next_power_of_2(n)
        _rms_norm_kernel[(rows,)](
            x,
            x if residual is None else residual.contiguous(),
            weight,
            out,
            total,
            n,
            heads,
            x.stride(0),
            head_stride,
            eps,
            HAS_RESIDUAL=residual is not None,
            BLOCK=block,
            num_warps=max(1, min(16, block // 256)),
        )
    return out, total


@triton.jit
def _rms_norm_kernel(
    x_ptr,
    residual_ptr,
    weight_ptr,
    out_ptr,
    total_ptr,
    n,
    heads,
    stride,
    head_stride,
    eps,
    HAS_RESIDUAL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < n
    start = (row // heads) * stride + (row % heads) * head_stride
    kind = out_ptr.dtype.element_ty
    wide = tl.load(x_ptr + start + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        wide += tl.load(residual_ptr + row * n + columns, mask=inside, other=0.0).to(tl.float32)
        stored = wide.to(kind)
        tl.store(total_ptr + row * n + columns, stored, mask=inside)
        wide = stored.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide) / n + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    normed = (wide * scale).to(kind).to(tl.float32)
    tl.store(out_ptr + row * n + columns, (normed * weight).to(kind), mask=inside)
