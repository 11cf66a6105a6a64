"""Architecture -> the class that runs it."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.distributed import TensorParallel
from engine.models.batch import ModelBatch
from engine.models.llama import LlamaForCausalLM
from engine.models.qwen3_moe import load_qwen3_moe
from engine.quantization.base import LinearMethod
from engine.weights.config import Architecture
from engine.weights.torch_loader import WeightLoader


class CausalLM(Protocol):
    def forward(self, batch: ModelBatch) -> torch.Tensor: ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


class ModelFactory(Protocol):
    def __call__(
        self, weights: WeightLoader, method: LinearMethod, tp: TensorParallel, *, max_positions: int
    ) -> CausalLM: ...


_MODELS: dict[Architecture, ModelFactory] = {
    "llama": LlamaForCausalLM,
    "qwen2": LlamaForCausalLM,
    "qwen3": LlamaForCausalLM,
    "qwen3_moe": load_qwen3_moe,
}


def load_model(weights: WeightLoader, method: LinearMethod, tp: TensorParallel, *, max_positions: int) -> CausalLM:
    return _MODELS[weights.config.architecture](weights, method, tp, max_positions=max_positions)
