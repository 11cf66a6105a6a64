"""SiLU-and-mul as one op."""

from __future__ import annotations

import torch
import torch.nn.functional as F

_SERIAL_VALUES = 32768
_VECTOR_VALUES = 64


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """[T, 2 n] -> [T, n]: silu of the first half times the second."""
    if x.device.type == "cuda":
        from engine.kernels.triton.silu_and_mul import silu_and_mul as kernel

        return kernel(x)
    gate, up = x.chunk(2, dim=-1)
    return _silu_by_rows(gate) * up


def _silu_by_rows(gate: torch.Tensor) -> torch.Tensor:
    """silu of whole rows, in pieces that torch computes on one thread.

    torch computes exp with vectors and what is left of a thread's piece with scalars, which differ in the last
    bit: where a piece ends must therefore not depend on how many rows or threads there are.
    """
    total, width = gate.shape
    step = max(1, _SERIAL_VALUES // width) if width % _VECTOR_VALUES == 0 else 1
    out = torch.empty((total, width), dtype=gate.dtype)
    for start in range(0, total, step):
        out[start : start + step] = F.silu(gate[start : start + step].contiguous())
    return out
