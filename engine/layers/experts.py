"""A mixture's experts: each rank holds a share of every expert's hidden width, so all ranks are always busy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.distributed import TensorParallel
from engine.kernels.quant_weight import QuantWeight
from engine.layers.activation import silu_and_mul
from engine.quantization.base import LinearMethod, LinearOp, Shard
from engine.weights.torch_loader import WeightLoader


class Experts:
    """x [T, hidden], ids and shares [T, top] -> the sum of share times expert, [T, hidden], on every rank.

    On a GPU all experts' weights are two tensors for one grouped kernel each, packed as the checkpoint has them where
    the kernels take that, else in the model's dtype. On a CPU every expert is two ordinary linears, and a token's
    result does not depend on whom it shares an expert with.
    """

    def __init__(self, weights: WeightLoader, prefix: str, method: LinearMethod, tp: TensorParallel) -> None:
        moe = weights.config.moe
        if moe is None:
            raise ValueError(f"{prefix}: this model has no experts")
        self._tp = tp
        self._fused: FusedMLP | None = None
        self._experts: list[tuple[LinearOp, LinearOp]] = []
        part = tp.share(moe.intermediate_size, "hidden units of an expert")
        columns = part if tp.size > 1 else None
        if weights.device.type == "cuda":
            self._fused = fuse(weights, prefix, method, part)
            return
        for index in range(moe.num_experts):
            name = f"{prefix}.{index}"
            gate_up = method.load(weights, [Shard(f"{name}.gate_proj", part), Shard(f"{name}.up_proj", part)])
            self._experts.append((gate_up, method.load(weights, [Shard(f"{name}.down_proj", columns=columns)])))

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        if self._fused is not None:
            return self._tp.all_reduce(self._fused(x, ids, shares))
        parts = torch.zeros((*ids.shape, x.shape[1]), dtype=x.dtype, device=x.device)
        for expert, (gate_up, down) in enumerate(self._experts):
            token, place = (ids == expert).nonzero(as_tuple=True)
            if len(token):
                parts[token, place] = down(silu_and_mul(gate_up(x[token])))
        total = torch.zeros_like(x)
        for rank in range(ids.shape[1]):  # in order of a token's experts, whatever the batch
            total += parts[:, rank] * shares[:, rank, None]
        return self._tp.all_reduce(total)


FusedMLP = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""x [T, hidden], ids and shares [T, top] -> [T, hidden] of this rank's share of every expert."""


class PlainExperts:
    """gate_up [experts, 2 n, hidden] and down [experts, hidden, n] in the model's dtype."""

    def __init__(self, gate_up: torch.Tensor, down: torch.Tensor) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp

        return grouped_mlp(x, self.gate_up, self.down, Routing(ids, shares))


class PackedExperts:
    """gate_up [experts * 2 n, hidden] and down [experts * hidden, n] of 4 or 8 bits, expert after expert."""

    def __init__(self, gate_up: QuantWeight, down: QuantWeight) -> None:
        self.gate_up = gate_up
        self.down = down

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        from engine.kernels.triton.grouped_mlp import Routing
        from engine.kernels.triton.grouped_quant import grouped_quant_mlp

        return grouped_quant_mlp(x, self.gate_up, self.down, Routing(ids, shares))


def fuse(weights: WeightLoader, prefix: str, method: LinearMethod, part: slice) -> PackedExperts | PlainExperts:
    """All experts for the grouped kernels; ``part``: this rank's hidden units of each."""
    names = [f"{prefix}.{index}" for index in range(weights.config.moe.num_experts if weights.config.moe else 0)]
    pairs = [(Shard(f"{name}.gate_proj", part), Shard(f"{name}.up_proj", part)) for name in names]
    ends = [Shard(f"{name}.down_proj", columns=part) for name in names]
    gate_up = method.pack(weights, [shard for pair in pairs for shard in pair], len(pairs))
    down = None if gate_up is None else method.pack(weights, ends, len(ends))
    if gate_up is not None and down is not None:
        return PackedExperts(gate_up, down)
    return PlainExperts(*_stack(weights, method, pairs, ends))


def _stack(
    weights: WeightLoader, method: LinearMethod, pairs: Sequence[tuple[Shard, Shard]], ends: Sequence[Shard]
) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up and down of PlainExperts, filled one expert at a time."""
    hidden, part = weights.config.hidden_size, ends[0].columns or slice(0, 0)
    width = part.stop - part.start
    gate_up = torch.empty((len(ends), 2 * width, hidden), dtype=weights.dtype, device=weights.device)
    down = torch.empty((len(ends), hidden, width), dtype=weights.dtype, device=weights.device)
    for index, ((gate, up), end) in enumerate(zip(pairs, ends, strict=True)):
        gate_up[index, :width] = method.matrix(weights, gate)
        gate_up[index, width:] = method.matrix(weights, up)
        down[index] = method.matrix(weights, end)
    return gate_up, down
