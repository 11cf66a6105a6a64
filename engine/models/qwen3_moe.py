"""Qwen3-MoE: Qwen3 with a mixture of experts in place of (most) MLPs."""

from __future__ import annotations

import torch

from engine.distributed import TensorParallel
from engine.layers.experts import Experts
from engine.models.llama import LlamaForCausalLM, LlamaMLP
from engine.quantization.base import LinearMethod
from engine.quantization.unquantized import UnquantizedLinearMethod
from engine.weights.config import MoEConfig
from engine.weights.torch_loader import WeightLoader


class Qwen3MoeMLP:
    """The router picks top_k experts for each token; softmax over all experts in float32, then the best."""

    def __init__(
        self, weights: WeightLoader, layer: int, method: LinearMethod, tp: TensorParallel, moe: MoEConfig
    ) -> None:
        prefix = f"model.layers.{layer}.mlp"
        self._moe = moe
        self._gate = UnquantizedLinearMethod().wrap(weights.matrix(f"{prefix}.gate.weight"))
        self._experts = Experts(weights, f"{prefix}.experts", method, tp)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        probabilities = torch.softmax(self._gate(x), dim=-1, dtype=torch.float32)
        shares, ids = torch.topk(probabilities, self._moe.top_k, dim=-1)
        if self._moe.normalise:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return self._experts(x, ids, shares.to(x.dtype))


def _make_mlp(weights: WeightLoader, layer: int, method: LinearMethod, tp: TensorParallel) -> Qwen3MoeMLP | LlamaMLP:
    moe = weights.config.moe
    if moe is None or layer in moe.dense_layers:
        return LlamaMLP(weights, layer, method, tp)
    return Qwen3MoeMLP(weights, layer, method, tp, moe)


def load_qwen3_moe(
    weights: WeightLoader, method: LinearMethod, tp: TensorParallel, *, max_positions: int
) -> LlamaForCausalLM:
    return LlamaForCausalLM(weights, method, tp, max_positions=max_positions, make_mlp=_make_mlp)
