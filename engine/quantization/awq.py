"""AWQ (arXiv 2306.00978) in 4 bits, AutoAWQ's "gemm" layout."""

from __future__ import annotations

from typing import Final

from engine.kernels.quant_weight import QuantWeight, pack_int4
from engine.quantization.base import Shard
from engine.quantization.packed import group_slice, unpack_int32
from engine.weights.quantization import QuantizationConfig
from engine.weights.torch_loader import WeightLoader

_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Nibble of each of eight neighbouring outputs: even ones first, then odd ones."""


def read_awq(weights: WeightLoader, config: QuantizationConfig, shard: Shard) -> QuantWeight:
    """qweight [in, out / 8], qzeros [in / group, out / 8], scales [in / group, out]; outputs interleaved in words."""
    rows, columns = shard.rows or slice(None), shard.columns or slice(None)
    groups = group_slice(shard.columns, config.group_size, shard.name)
    q = unpack_int32(weights.packed(f"{shard.name}.qweight"), _ORDER)[columns, rows].T
    zeros = unpack_int32(weights.packed(f"{shard.name}.qzeros"), _ORDER)[groups, rows].T
    scales = weights.packed(f"{shard.name}.scales")[groups, rows].T
    data = pack_int4(q.contiguous(), config.group_size)
    return QuantWeight("int4", data, scales.contiguous(), 1, config.group_size, zeros.contiguous())
