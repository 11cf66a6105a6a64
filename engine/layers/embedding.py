"""Token embedding and output head, split over ranks by vocabulary."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.distributed import TensorParallel
from engine.quantization.base import LinearMethod, Shard
from engine.weights.torch_loader import WeightLoader


class VocabParallelEmbedding:
    """ids [T] -> [T, hidden]. Each rank looks up its own ids; the rest is zero before the sum."""

    def __init__(self, weights: WeightLoader, name: str, tp: TensorParallel) -> None:
        self._tp = tp
        self._rows = tp.share(weights.checkpoint.shape(f"{name}.weight")[0], "vocabulary")
        self.weight = weights.matrix(f"{name}.weight", self._rows)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        if self._tp.size == 1:
            return F.embedding(ids, self.weight)
        local = ids - self._rows.start
        outside = (local < 0) | (local >= self.weight.shape[0])
        rows = F.embedding(local.masked_fill(outside, 0), self.weight)
        return self._tp.all_reduce(rows.masked_fill(outside[:, None], 0))


class LMHead:
    """hidden [L, hidden] -> logits [L, vocab], gathered on every rank. ``tied`` shares the embedding's matrix."""

    def __init__(
        self, weights: WeightLoader, method: LinearMethod, tp: TensorParallel, *, tied: VocabParallelEmbedding | None
    ) -> None:
        self._tp = tp
        if tied is not None:
            self._op = method.wrap(tied.weight)
        else:
            rows = tp.share(weights.config.vocab_size, "vocabulary")
            self._op = method.load(weights, [Shard("lm_head", rows)])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._tp.all_gather(self._op(x))
