"""Parallel linears in Megatron's scheme (arXiv 1909.08053): split outputs, then split inputs and sum."""

from __future__ import annotations

import torch

from engine.distributed import TensorParallel
from engine.layers.activation import silu_and_mul
from engine.quantization.base import LinearMethod, Shard
from engine.quantization.unquantized import UnquantizedLinear
from engine.weights.torch_loader import WeightLoader


class QKVParallelLinear:
    """q, k and v projections as one multiplication; each rank holds whole heads."""

    def __init__(self, weights: WeightLoader, prefix: str, method: LinearMethod, tp: TensorParallel) -> None:
        config = weights.config
        heads, kv_heads = tp.share(config.num_heads, "attention heads"), tp.kv_heads(config.num_kv_heads)
        self.num_heads = heads.stop - heads.start
        self.num_kv_heads = kv_heads.stop - kv_heads.start
        self.head_dim = dim = config.head_dim
        self._sizes = [self.num_heads * dim, self.num_kv_heads * dim, self.num_kv_heads * dim]
        q_rows = slice(heads.start * dim, heads.stop * dim)
        kv_rows = slice(kv_heads.start * dim, kv_heads.stop * dim)
        shards = [
            Shard(f"{prefix}.q_proj", q_rows),
            Shard(f"{prefix}.k_proj", kv_rows),
            Shard(f"{prefix}.v_proj", kv_rows),
        ]
        self._op = method.load(weights, shards)

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [T, hidden] -> q [T, heads, dim], k and v [T, kv_heads, dim], views of one result."""
        q, k, v = self._op(x).split_with_sizes(self._sizes, dim=-1)
        kv = (-1, self.num_kv_heads, self.head_dim)
        return q.view(-1, self.num_heads, self.head_dim), k.view(kv), v.view(kv)


class MergedColumnParallelLinear:
    """Several linears of the same input as one multiplication: x [T, in] -> [T, sum of this rank's outputs]."""

    def __init__(self, weights: WeightLoader, names: list[str], method: LinearMethod, tp: TensorParallel) -> None:
        shards = []
        for name in names:
            outputs = weights.checkpoint.linear_shape(name)[0]
            shards.append(Shard(name, tp.share(outputs, f"outputs of {name}")))
        self._op = method.load(weights, shards)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._op(x)

    def silu_gated(self, x: torch.Tensor) -> torch.Tensor:
        """silu of the first half of the outputs times the second half; one kernel for few rows on a GPU."""
        if x.device.type == "cuda" and isinstance(self._op, UnquantizedLinear) and self._op.bias is None:
            from engine.kernels.triton.gate_up import MAX_ROWS, gate_up

            if x.shape[0] <= MAX_ROWS:
                return gate_up(x, self._op.weight)
        return silu_and_mul(self._op(x))


class RowParallelLinear:
    """Inputs split over ranks, outputs summed: x [T, in / size] -> [T, out] on every rank."""

    def __init__(self, weights: WeightLoader, name: str, method: LinearMethod, tp: TensorParallel) -> None:
        columns = tp.share(weights.checkpoint.linear_shape(name)[1], f"inputs of {name}")
        shard = Shard(name, columns=columns if tp.size > 1 else None, bias=tp.rank == 0)
        self._op = method.load(weights, [shard])
        self._tp = tp

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._tp.all_reduce(self._op(x))
