"""y = x W^T + b with W in 8-bit integers, 4-bit integers or 8-bit floats, dequantized in registers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
import triton
import triton.language as tl

from engine.kernels.quant_weight import QuantWeight
from engine.kernels.triton.autotune import tune_table
from engine.kernels.triton.common import INTERPRETED, cdiv, check_rows, dot, row_bucket

_CONFIGS = (
    {"BLOCK_N": 64, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 32, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 128, "num_warps": 8, "num_stages": 3},
)
_MAX_BLOCK_K: Final = 128
_FP8_GPU: Final = (8, 9)


def block_k(weight: QuantWeight) -> int:
    """Inputs per step: at most 128, and never across the border of a scale."""
    if weight.kind == "int4":
        return weight.group_k // 2
    block = min(_MAX_BLOCK_K, weight.group_k & -weight.group_k)
    return block if weight.group_k < weight.shape[1] else _MAX_BLOCK_K


def refuses(weight: QuantWeight, device: torch.device | None = None) -> str | None:
    """Why the kernels cannot multiply by ``weight`` (on ``device``), or None."""
    if block_k(weight) < 16 or block_k(weight) & (block_k(weight) - 1):
        return f"groups of {weight.group_k} inputs cannot be cut into blocks of a power of two of 16 and more"
    if weight.kind == "int4" and weight.shape[1] % weight.group_k:
        return f"{weight.shape[1]} inputs are no multiple of the group of {weight.group_k}"
    if weight.kind == "fp8" and device is not None and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _FP8_GPU:
            return f"8-bit floats need compute capability 8.9, this GPU has {capability[0]}.{capability[1]}"
    return None


def stored(weight: QuantWeight) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """data, scales, zeros and order as kernels take them: fp8 as bytes, and some tensor where there is none."""
    data = weight.data.view(torch.uint8) if weight.kind == "fp8" else weight.data
    zeros = weight.scales if weight.zeros is None else weight.zeros
    return data, weight.scales, zeros, weight.scales if weight.order is None else weight.order


def quant_linear(x: torch.Tensor, weight: QuantWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, k] -> [T, n] in x's dtype, sums in float32."""
    check_rows(x, "x")
    rows, (n, k) = x.shape[0], weight.shape
    out = torch.empty((rows, n), dtype=x.dtype, device=x.device)
    if not rows:
        return out
    block_m = 16 if rows <= 16 else 64
    step = block_k(weight)

    def run(config: Mapping[str, int]) -> None:
        _quant_linear_kernel[(cdiv(n, config["BLOCK_N"]), cdiv(rows, block_m))](
            x,
            *stored(weight),
            x if bias is None else bias,
            out,
            rows,
            n,
            k,
            x.stride(0),
            weight.scales.shape[1],
            weight.group_n,
            weight.group_k,
            INT4=weight.kind == "int4",
            FP8=weight.kind == "fp8",
            ZEROS=weight.zeros is not None,
            ORDERED=weight.order is not None,
            BIAS=bias is not None,
            BLOCK_M=block_m,
            BLOCK_K=step,
            WIDEN=INTERPRETED,
            **config,
        )

    run(tune_table().pick(f"linear_{weight.kind}", (row_bucket(rows), n, k, step), _CONFIGS, run))
    return out


@triton.jit
def load_inputs(x_rows, real, order_ptr, column, deep, ORDERED: tl.constexpr):
    """What meets the weight's columns ``column``: x at these places, or where their order says."""
    if ORDERED:
        column = tl.load(order_ptr + column, mask=deep, other=0)
    return tl.load(x_rows + column[None, :], mask=real[:, None] & deep[None, :], other=0.0)


@triton.jit
def packed_dot(x, second, data_ptr, scale_ptr, zero_ptr, line, inside, depth, deep, width, groups, group, group_n, acc, INT4: tl.constexpr, FP8: tl.constexpr, ZEROS: tl.constexpr, WIDEN: tl.constexpr):  # fmt: skip  # noqa: E501
    """acc + x W^T over one block of inputs: ``line`` are rows of W, ``depth`` columns of its data, ``group`` the
    block's scale. For int4 ``x`` meets the low and ``second`` the high halves of the bytes."""
    kind = x.dtype
    packed = tl.load(data_ptr + line[:, None] * width + depth[None, :], mask=inside[:, None] & deep[None, :], other=0)
    scale = tl.load(scale_ptr + (line // group_n) * groups + group, mask=inside, other=0.0).to(tl.float32)
    part = tl.zeros_like(acc)
    if INT4:
        low, high = (packed & 15).to(tl.float32), (packed >> 4).to(tl.float32)
        if ZEROS:
            zero = tl.load(zero_ptr + line * groups + group, mask=inside, other=0).to(tl.float32)
            low, high = low - zero[:, None], high - zero[:, None]
        part = dot(x, tl.trans(low.to(kind)), part, WIDEN)
        part = dot(second, tl.trans(high.to(kind)), part, WIDEN)
    else:
        if FP8:
            packed = packed.to(tl.float8e4nv, bitcast=True)
        part = dot(x, tl.trans(packed.to(tl.float32).to(kind)), part, WIDEN)
    return acc + part * scale[None, :]


@triton.jit(do_not_specialize=["rows"])
def _quant_linear_kernel(
    x_ptr,
    data_ptr,
    scale_ptr,
    zero_ptr,
    order_ptr,
    bias_ptr,
    out_ptr,
    rows,
    n,
    k,
    x_stride,
    groups,
    group_n,
    group_k,
    INT4: tl.constexpr,
    FP8: tl.constexpr,
    ZEROS: tl.constexpr,
    ORDERED: tl.constexpr,
    BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    WIDEN: tl.constexpr,
):
    row = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = row < rows, column < n
    x_rows = x_ptr + row.to(tl.int64)[:, None] * x_stride
    width = k // 2 if INT4 else k
    line = column.to(tl.int64)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        depth = start + tl.arange(0, BLOCK_K)
        deep = depth < width
        group = (2 * start if INT4 else start) // group_k
        x = load_inputs(x_rows, real, order_ptr, start + depth if INT4 else depth, deep, ORDERED)
        second = x
        if INT4:
            second = load_inputs(x_rows, real, order_ptr, start + BLOCK_K + depth, deep, ORDERED)
        acc = packed_dot(x, second, data_ptr, scale_ptr, zero_ptr, line, inside, depth, deep, width, groups, group, group_n, acc, INT4, FP8, ZEROS, WIDEN)  # fmt: skip  # noqa: E501
    if BIAS:
        acc += tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32)[None, :]
    place = row.to(tl.int64)[:, None] * n + column[None, :]
    tl.store(out_ptr + place, acc.to(out_ptr.dtype.element_ty), mask=real[:, None] & inside[None, :])
