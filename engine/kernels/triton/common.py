"""What the kernels share: whether they are interpreted, block sizes, and a dot product that is right in both worlds."""

from __future__ import annotations

import os
from typing import Final

import torch
import triton
import triton.language as tl

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # whatever the version's default: fused multiply-adds

INTERPRETED: Final = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
"""The interpreter multiplies bfloat16 wrongly, so operands are widened there first."""
LOG2E: Final = tl.constexpr(1.4426950408889634)


def next_power_of_2(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def cdiv(value: int, step: int) -> int:
    return -(-value // step)


def row_bucket(rows: int) -> int:
    """Row counts that share a tuned configuration."""
    return min(8192, next_power_of_2(max(1, rows)))


def check_rows(x: torch.Tensor, what: str) -> torch.Tensor:
    """Kernels step along the last axis one by one; ValueError where that is not so."""
    if x.stride(-1) != 1:
        raise ValueError(f"{what} must be contiguous along its last axis, its strides are {x.stride()}")
    return x


@triton.jit
def silu(x):
    """x * sigmoid(x) in float32; exp never sees a positive number."""
    small = tl.exp(-tl.abs(x))
    return x * tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def dot(a, b, acc, WIDEN: tl.constexpr):
    """acc + a @ b in float32. float32 operands are multiplied as such, not as TF32."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")
