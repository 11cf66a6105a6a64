"""What the linear kernels must compute, in plain numpy."""

from __future__ import annotations

from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt

from engine.kernels.cpu.linear import GROUP, Format, Weight

FloatArray = npt.NDArray[np.float32]
DoubleArray = npt.NDArray[np.float64]


def dequantize_ref(weight: Weight) -> FloatArray:
    """The matrix [n, k] that the file's bytes stand for."""
    shape = (weight.n, weight.k)
    if weight.fmt == Format.F32:
        return weight.raw.view(np.float32).reshape(shape)
    if weight.fmt == Format.F16:
        return weight.raw.view(np.float16).astype(np.float32).reshape(shape)
    if weight.fmt == Format.BF16:
        return (weight.raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    raw = weight.raw.view(np.uint8).reshape(weight.n, -1)
    values: Any = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(int(weight.fmt)))
    return cast(FloatArray, values.astype(np.float32).reshape(shape))


def quantize_rows_ref(x: FloatArray) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """int8 codes [m, k] and scales [m, k / 32].

    A scale is the smallest power of two that keeps its group's codes within 127; codes are the nearest, ties to even.
    """
    groups = x.reshape(x.shape[0], -1, GROUP)
    largest = np.abs(groups).max(-1, keepdims=True)
    used = largest >= np.float32(1e-30)
    mantissa, exponent = np.frexp(np.where(used, largest, np.float32(127)) * np.float32(1 / 127))
    scales = np.ldexp(np.float32(1), exponent - (mantissa == 0.5)).astype(np.float32)
    codes = np.where(used, np.rint(groups / scales), 0).astype(np.int8).reshape(x.shape)
    return codes, np.where(used, scales, np.float32(0))[..., 0]


def linear_ref(values: FloatArray, weight: Weight) -> DoubleArray:
    """values [m, k] (what the activation rows stand for) times the matrix, plus bias, in double precision."""
    out: DoubleArray = values.astype(np.float64) @ dequantize_ref(weight).astype(np.float64).T
    return out if weight.bias is None else out + weight.bias


def silu_mul_ref(gate: DoubleArray, up: DoubleArray) -> DoubleArray:
    """silu(gate) * up."""
    result: DoubleArray = gate * (0.5 * (1.0 + np.tanh(0.5 * gate))) * up
    return result
