"""Float weights made int8 or int4 while loading: ``--quantization int8 | int4`` on a GPU."""

from __future__ import annotations

from typing import Literal

import torch

from engine.kernels.quant_weight import QuantWeight, pack_int4
from engine.quantization.base import Shard
from engine.weights.quantization import QuantizationConfig
from engine.weights.torch_loader import WeightLoader

_GROUPS = (128, 64, 32)


def quantize(weight: torch.Tensor, kind: Literal["int8", "int4"]) -> QuantWeight | torch.Tensor:
    """weight [n, k] -> groups of 128, 64 or 32 inputs, each with its own scale (int4: and zero point), every value
    rounded to the nearest; ``weight`` itself where no such group divides k."""
    n, k = weight.shape
    group = next((size for size in _GROUPS if k % size == 0), 0)
    if not group:
        return weight
    parts = weight.float().view(n, k // group, group)
    if kind == "int8":
        scales = (parts.abs().amax(-1) / 127).clamp_min(1e-12)
        data = (parts / scales[..., None]).round().clamp(-127, 127).to(torch.int8)
        return QuantWeight("int8", data.view(n, k), scales, 1, group)
    low, high = parts.amin(-1).clamp_max(0), parts.amax(-1).clamp_min(0)
    scales = ((high - low) / 15).clamp_min(1e-12)
    zeros = (-low / scales).round()
    data = ((parts / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return QuantWeight("int4", pack_int4(data.view(n, k), group), scales, 1, group, zeros.to(torch.uint8))


def read_int8(weights: WeightLoader, config: QuantizationConfig, shard: Shard) -> QuantWeight | torch.Tensor:
    return quantize(weights.matrix(f"{shard.name}.weight", shard.rows, shard.columns), "int8")


def read_int4(weights: WeightLoader, config: QuantizationConfig, shard: Shard) -> QuantWeight | torch.Tensor:
    return quantize(weights.matrix(f"{shard.name}.weight", shard.rows, shard.columns), "int4")
