"""Architecture -> the class that runs it."""

from __future__ import annotations

from typing import Protocol

import torch

from engine.distributed import TensorParallel
from engine.models.batch import ModelBatch
from engine.models.llama import LlamaForCausalLM
from engine.quantization.base import LinearMethod
from engine.weights.config import Architecture
from engine.weights.torch_loader import WeightLoader


class CausalLM(Protocol):
    def forward(self, batch: ModelBatch) -> torch.Tensor: ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor: ...


_MODELS: dict[Architecture, type[LlamaForCausalLM]] = {
    "llama": LlamaForCausalLM,
    "qwen2": LlamaForCausalLM,
    "qwen3": LlamaForCausalLM,
}


def load_model(weights: WeightLoader, method: LinearMethod, tp: TensorParallel, *, max_positions: int) -> CausalLM:
    return _MODELS[weights.config.architecture](weights, method, tp, max_positions=max_positions)
