"""SiLU of one half times the other, for many rows, where the projection is a plain matrix multiplication."""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton.common import cdiv, check_rows, next_power_of_2, silu


def silu_and_mul_ref(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.float().chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """x [T, 2 n] -> [T, n], in float32 between."""
    rows, n = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    block = min(1024, next_power_of_2(n))
    if rows:
        check_rows(x, "x")
        _silu_and_mul_kernel[(rows, cdiv(n, block))](x, out, n, x.stride(0), BLOCK=block, num_warps=4)
    return out


@triton.jit
def _silu_and_mul_kernel(x_ptr, out_ptr, n, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < n
    gate = tl.load(x_ptr + row * stride + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * stride + n + columns, mask=inside, other=0.0).to(tl.float32)
    out = silu(gate) * up
    tl.store(out_ptr + row * n + columns, out.to(out_ptr.dtype.element_ty), mask=inside)
