"""What a layer and a LinearMethod say to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.kernels.quant_weight import QuantWeight
from engine.weights.torch_loader import WeightLoader


@dataclass(frozen=True, slots=True)
class Shard:
    """This rank's part of one linear of the checkpoint: ``rows`` of its outputs, ``columns`` of its inputs.

    name: of the module (``model.layers.0.mlp.up_proj``); the method reads the tensors it stores under it.
    bias: False where another rank adds it.
    """

    name: str
    rows: slice | None = None
    columns: slice | None = None
    bias: bool = True


class LinearOp(Protocol):
    """One loaded linear: x [T, in] -> [T, out]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class LinearMethod(Protocol):
    """Arithmetic of linears: what is kept in memory and how it is multiplied."""

    def load(self, weights: WeightLoader, shards: Sequence[Shard]) -> LinearOp:
        """One op whose outputs are those of ``shards``, one after the other, over the same input."""
        ...

    def matrix(self, weights: WeightLoader, shard: Shard) -> torch.Tensor:
        """The shard's weight as a plain matrix in the model's dtype on its device (experts are stacked from these)."""
        ...

    def pack(self, weights: WeightLoader, shards: Sequence[Shard], runs: int = 1) -> QuantWeight | None:
        """The shards one after the other as one packed matrix on the device (experts are grouped over it), or None
        where they are not packed, or not in a form that the kernels take. They are ``runs`` runs of equal length;
        the shards of a run meet their inputs in the same order."""
        ...

    def wrap(self, weight: torch.Tensor) -> LinearOp:
        """An op over a matrix [out, in] that somebody else owns (a tied embedding)."""
        ...
