"""FP8 (e4m3) weights with one scale per tensor or per block, as DeepSeek-V3 and Qwen3's FP8 checkpoints store them."""

from __future__ import annotations

import math

import torch

from engine.kernels.quant_weight import QuantWeight
from engine.quantization.base import Shard
from engine.weights.quantization import QuantizationConfig
from engine.weights.torch_loader import WeightLoader


def read_fp8(weights: WeightLoader, config: QuantizationConfig, shard: Shard) -> QuantWeight:
    """weight [out, in]; weight_scale [1], or weight_scale_inv [out / block, in / block]: factors, despite the name.

    Activations are not quantized, so ``activation_scheme`` and input scales do not matter here.
    """
    rows, columns = shard.rows or slice(None), shard.columns or slice(None)
    whole = weights.packed(f"{shard.name}.weight")
    data = whole.view(torch.uint8)[rows, columns].contiguous().view(whole.dtype)
    outputs = torch.arange(whole.shape[0])[rows]
    if config.block is None:
        scales = weights.packed(f"{shard.name}.weight_scale").expand(len(outputs), 1)
        return QuantWeight("fp8", data, scales.contiguous(), 1, data.shape[1])
    scales = weights.packed(f"{shard.name}.weight_scale_inv")[outputs // config.block[0]]
    return QuantWeight("fp8", data, *_share(scales, columns, config.block[1], data.shape[1]))


def _share(scales: torch.Tensor, columns: slice, block: int, width: int) -> tuple[torch.Tensor, int, int]:
    """The scales of ``columns``, group_n and group_k. Where a rank's share does not begin at a block's border, the
    groups are as wide as what block and border have in common."""
    start = columns.start or 0
    common = math.gcd(block, start)
    first = torch.arange(start, start + width, common) // block
    return scales[:, first].contiguous(), 1, common
