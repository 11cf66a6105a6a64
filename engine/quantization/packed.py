"""Linears of quantized checkpoints: kept packed where the kernel for them runs, else made plain while loading."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from engine.kernels.quant_weight import QuantWeight, dequantize
from engine.quantization.base import LinearOp, Shard
from engine.quantization.unquantized import UnquantizedLinearMethod, load_bias
from engine.weights.quantization import QuantizationConfig
from engine.weights.torch_loader import WeightLoader

Reader = Callable[[WeightLoader, QuantizationConfig, Shard], QuantWeight | torch.Tensor]
"""One format: a shard of a linear -> its QuantWeight on the CPU, with a scale for every row (group_n 1); or, where
it cannot be one, the plain matrix in float32."""


class PackedLinear:
    """y = x W^T + b on a GPU, W dequantized in registers."""

    def __init__(self, weight: QuantWeight, bias: torch.Tensor | None) -> None:
        from engine.kernels.triton.quant_linear import quant_linear

        self.weight = weight
        self.bias = bias
        self._multiply = quant_linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x, self.weight, self.bias)


class PackedLinearMethod:
    """Modules that the checkpoint left unquantized (a head, skipped layers) are loaded as they are."""

    def __init__(self, config: QuantizationConfig, read: Reader) -> None:
        self._config = config
        self._read = read
        self._plain = UnquantizedLinearMethod()

    def load(self, weights: WeightLoader, shards: Sequence[Shard]) -> LinearOp:
        covered = [self._config.covers(shard.name) for shard in shards]
        if not any(covered):
            return self._plain.load(weights, shards)
        bias = load_bias(weights, shards)
        if all(covered) and weights.device.type == "cuda":
            return self._packed(weights, [self._read(weights, self._config, shard) for shard in shards], bias)
        return self._plain.over(torch.cat([self.matrix(weights, shard) for shard in shards]), bias)

    def matrix(self, weights: WeightLoader, shard: Shard) -> torch.Tensor:
        if not self._config.covers(shard.name) or self._config.method == "round":
            return self._plain.matrix(weights, shard)  # rounding would cost accuracy and save nothing here
        return _plain(self._read(weights, self._config, shard), weights)

    def pack(self, weights: WeightLoader, shards: Sequence[Shard], runs: int = 1) -> QuantWeight | None:
        if not all(self._config.covers(shard.name) for shard in shards):
            return None
        parts: list[QuantWeight] = []
        for shard in shards:
            part = self._read(weights, self._config, shard)
            if not isinstance(part, QuantWeight):
                return None
            parts.append(part)
        return _joined(parts, weights.device, runs)

    def _packed(
        self, weights: WeightLoader, parts: Sequence[QuantWeight | torch.Tensor], bias: torch.Tensor | None
    ) -> LinearOp:
        packed = [part for part in parts if isinstance(part, QuantWeight)]
        joined = _joined(packed, weights.device) if len(packed) == len(parts) else None
        if joined is not None:
            return PackedLinear(joined, bias)
        return self._plain.over(torch.cat([_plain(part, weights) for part in parts]), bias)

    def wrap(self, weight: torch.Tensor) -> LinearOp:
        return self._plain.wrap(weight)


def _plain(part: QuantWeight | torch.Tensor, weights: WeightLoader) -> torch.Tensor:
    values = part if isinstance(part, torch.Tensor) else dequantize(part)
    return values.to(dtype=weights.dtype, device=weights.device)


def _joined(parts: Sequence[QuantWeight], device: torch.device, runs: int = 1) -> QuantWeight | None:
    """Outputs one after the other, on the device; None where the kernels do not take them."""
    from engine.kernels.triton.quant_linear import refuses

    joined = _join(parts, runs)
    return None if joined is None or refuses(joined, device) is not None else _to(joined, device)


def _join(parts: Sequence[QuantWeight], runs: int) -> QuantWeight | None:
    """None where parts of a run meet their inputs in different orders."""
    length = len(parts) // runs
    orders: list[torch.Tensor] = []
    for start in range(0, len(parts), length):
        own = [part.order for part in parts[start : start + length]]
        known = [order for order in own if order is not None]
        if known and (len(known) < len(own) or any(not torch.equal(order, known[0]) for order in known)):
            return None
        orders += known[:1]
    if orders and len(orders) < runs:
        return None
    zeros = [part.zeros for part in parts if part.zeros is not None]
    return replace(
        parts[0],
        data=torch.cat([part.data.view(torch.uint8) for part in parts]).view(parts[0].data.dtype),
        scales=torch.cat([part.scales for part in parts]),
        zeros=torch.cat(zeros) if zeros else None,
        order=torch.stack(orders) if orders else None,
    )


def _to(weight: QuantWeight, device: torch.device) -> QuantWeight:
    zeros, order = (None if part is None else part.to(device) for part in (weight.zeros, weight.order))
    return replace(weight, data=weight.data.to(device), scales=weight.scales.to(device), zeros=zeros, order=order)


def unpack_int32(packed: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """int32 [r, c] of eight 4-bit values each -> uint8 [r, 8 c]; value j of a word is in its nibble ``order[j]``."""
    shifts = 4 * torch.tensor(order, dtype=torch.int32)
    return ((packed.unsqueeze(-1) >> shifts) & 15).to(torch.uint8).view(packed.shape[0], -1)


def group_slice(columns: slice | None, group: int, name: str) -> slice:
    """Groups of the inputs ``columns``; ValueError where a rank's share would cut one."""
    if columns is None:
        return slice(None)
    if columns.start % group or columns.stop % group:
        raise ValueError(
            f"{name}: {columns.stop - columns.start} inputs per rank cut its groups of {group}; use fewer ranks"
        )
    return slice(columns.start // group, columns.stop // group)
