"""A mixture's experts: each rank holds a share of every expert's hidden width, so all ranks are always busy."""

from __future__ import annotations

import torch

from engine.distributed import TensorParallel
from engine.layers.activation import silu_and_mul
from engine.quantization.base import LinearMethod, LinearOp, Shard
from engine.weights.torch_loader import WeightLoader


class Experts:
    """x [T, hidden], ids and shares [T, top] -> the sum of share times expert, [T, hidden], on every rank.

    On a GPU all experts' weights are two tensors for one grouped kernel each, in the model's dtype. On a CPU every
    expert is two ordinary linears, and a token's result does not depend on whom it shares an expert with.
    """

    def __init__(self, weights: WeightLoader, prefix: str, method: LinearMethod, tp: TensorParallel) -> None:
        moe = weights.config.moe
        if moe is None:
            raise ValueError(f"{prefix}: this model has no experts")
        self._tp = tp
        self._fused: tuple[torch.Tensor, torch.Tensor] | None = None
        self._experts: list[tuple[LinearOp, LinearOp]] = []
        part = tp.share(moe.intermediate_size, "hidden units of an expert")
        columns = part if tp.size > 1 else None
        if weights.device.type == "cuda":
            self._fused = _stack(weights, prefix, method, part, moe.num_experts)
            return
        for index in range(moe.num_experts):
            name = f"{prefix}.{index}"
            gate_up = method.load(weights, [Shard(f"{name}.gate_proj", part), Shard(f"{name}.up_proj", part)])
            self._experts.append((gate_up, method.load(weights, [Shard(f"{name}.down_proj", columns=columns)])))

    def __call__(self, x: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        if self._fused is not None:
            from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp

            return self._tp.all_reduce(grouped_mlp(x, *self._fused, Routing(ids, shares)))
        parts = torch.zeros((*ids.shape, x.shape[1]), dtype=x.dtype, device=x.device)
        for expert, (gate_up, down) in enumerate(self._experts):
            token, place = (ids == expert).nonzero(as_tuple=True)
            if len(token):
                parts[token, place] = down(silu_and_mul(gate_up(x[token])))
        total = torch.zeros_like(x)
        for rank in range(ids.shape[1]):  # in order of a token's experts, whatever the batch
            total += parts[:, rank] * shares[:, rank, None]
        return self._tp.all_reduce(total)


def _stack(
    weights: WeightLoader, prefix: str, method: LinearMethod, part: slice, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """gate_up [experts, 2 n, hidden] and down [experts, hidden, n], filled one expert at a time."""
    hidden, width = weights.config.hidden_size, part.stop - part.start
    gate_up = torch.empty((count, 2 * width, hidden), dtype=weights.dtype, device=weights.device)
    down = torch.empty((count, hidden, width), dtype=weights.dtype, device=weights.device)
    for index in range(count):
        name = f"{prefix}.{index}"
        gate_up[index, :width] = method.matrix(weights, Shard(f"{name}.gate_proj", part))
        gate_up[index, width:] = method.matrix(weights, Shard(f"{name}.up_proj", part))
        down[index] = method.matrix(weights, Shard(f"{name}.down_proj", columns=part))
    return gate_up, down
