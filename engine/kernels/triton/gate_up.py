"""The gate and up projection of a SiLU-gated MLP with its activation, as one kernel, for few rows.

With few rows the weights are read once and that is all the time there is: keeping gate and up in registers saves
writing and reading [T, 2 n]. With many rows a plain matrix multiplication and silu_and_mul are faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, cdiv, check_rows, dot, row_bucket, silu

MAX_ROWS: Final = 64
_CONFIGS = (
    {"BLOCK_N": 32, "BLOCK_K": 128, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 16, "BLOCK_K": 256, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 64, "BLOCK_K": 128, "num_warps": 8, "num_stages": 3},
)


def gate_up_ref(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, up = F.linear(x.float(), weight.float()).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(x.dtype)


def gate_up(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [T, k], weight [2 n, k] (gate's rows, then up's) -> silu(x gate^T) * (x up^T) [T, n], sums in float32."""
    check_rows(x, "x"), check_rows(weight, "weight")
    rows, k = x.shape
    n = weight.shape[0] // 2
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if not rows:
        return out
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64

    def run(config: Mapping[str, int]) -> None:
        _gate_up_kernel[(cdiv(n, config["BLOCK_N"]), cdiv(rows, block_m))](
            x, weight, out, rows, n, k, x.stride(0), weight.stride(0), BLOCK_M=block_m, WIDEN=INTERPRETED, **config
        )

    run(tune_table().pick("gate_up", (row_bucket(rows), n, k, x.element_size()), _CONFIGS, run))
    return out


@triton.jit(do_not_specialize=["rows"])
def _gate_up_kernel(
    x_ptr,
    weight_ptr,
    out_ptr,
    rows,
    n,
    k,
    x_stride,
    weight_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDEN: tl.constexpr,
):
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = row < rows, column < n
    x_rows = x_ptr + row.to(tl.int64)[:, None] * x_stride
    gate_rows = weight_ptr + column.to(tl.int64)[:, None] * weight_stride
    up_rows = weight_ptr + (column.to(tl.int64) + n)[:, None] * weight_stride
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, k, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        deep = depth[None, :] < k
        x = tl.load(x_rows + depth[None, :], mask=real[:, None] & deep, other=0.0)
        here = inside[:, None] & deep
        gate = dot(x, tl.trans(tl.load(gate_rows + depth[None, :], mask=here, other=0.0)), gate, WIDEN)
        up = dot(x, tl.trans(tl.load(up_rows + depth[None, :], mask=here, other=0.0)), up, WIDEN)
    out = silu(gate) * up
    place = row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(out_ptr + place, out.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
