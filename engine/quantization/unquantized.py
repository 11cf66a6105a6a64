"""Weights as they are, in the model's dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.quantization.base import LinearOp, Shard
from engine.quantization.row_tiles import apply_tiled, proven_sizes
from engine.weights.torch_loader import WeightLoader


class UnquantizedLinear:
    """y = x W^T + b. On a CPU a row's bits do not depend on its batch (engine.quantization.row_tiles)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, tiles: tuple[int, ...]) -> None:
        self.weight = weight
        self.bias = bias
        self.tiles = tiles

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if not self.tiles:
            return self._multiply(x)
        return apply_tiled(self._multiply, x, self.tiles)

    def _multiply(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


class UnquantizedLinearMethod:
    """Remembers which row tiles were proven for which shape, so that each shape is tried once per model."""

    def __init__(self) -> None:
        self._proven: dict[tuple[object, ...], tuple[int, ...]] = {}

    def load(self, weights: WeightLoader, shards: Sequence[Shard]) -> LinearOp:
        parts = [weights.checkpoint.shape(f"{shard.name}.weight") for shard in shards]
        counts = [len(range(*(shard.rows or slice(None)).indices(shape[0]))) for shard, shape in zip(shards, parts)]
        width = len(range(*(shards[0].columns or slice(None)).indices(parts[0][1])))
        weight = torch.empty((sum(counts), width), dtype=weights.dtype, device=weights.device)
        for part, shard in zip(weight.split_with_sizes(counts), shards):
            weights.fill(part, f"{shard.name}.weight", shard.rows, shard.columns)
        return self.over(weight, load_bias(weights, shards))

    def matrix(self, weights: WeightLoader, shard: Shard) -> torch.Tensor:
        return weights.matrix(f"{shard.name}.weight", shard.rows, shard.columns)

    def pack(self, weights: WeightLoader, shards: Sequence[Shard], runs: int = 1) -> None:
        return None

    def wrap(self, weight: torch.Tensor) -> LinearOp:
        return self.over(weight, None)

    def over(self, weight: torch.Tensor, bias: torch.Tensor | None) -> LinearOp:
        """An op over a matrix in memory."""
        if weight.device.type != "cpu":
            return UnquantizedLinear(weight, bias, ())
        key = (*weight.shape, weight.dtype, bias is None)
        if key not in self._proven:
            self._proven[key] = proven_sizes(lambda x: F.linear(x, weight, bias), weight.shape[1], weight.dtype)
        return UnquantizedLinear(weight, bias, self._proven[key])


def load_bias(weights: WeightLoader, shards: Sequence[Shard]) -> torch.Tensor | None:
    if not weights.has(f"{shards[0].name}.bias") or not shards[0].bias:
        return None
    return torch.cat([weights.vector(f"{shard.name}.bias", shard.rows) for shard in shards])
