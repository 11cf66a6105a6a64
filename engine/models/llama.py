"""Llama and its kin (Qwen2 adds biases to q, k and v; Qwen3 norms q and k): pre-norm blocks of attention and
a SiLU-gated MLP. What differs is in ModelConfig and in which tensors the checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.distributed import TensorParallel
from engine.layers.embedding import LMHead, VocabParallelEmbedding
from engine.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryEmbedding, rotate
from engine.models.batch import ModelBatch
from engine.quantization.base import LinearMethod
from engine.weights.torch_loader import WeightLoader


class LlamaAttention:
    def __init__(self, weights: WeightLoader, layer: int, method: LinearMethod, tp: TensorParallel) -> None:
        prefix = f"model.layers.{layer}.self_attn"
        self._layer = layer
        self._qkv_proj = QKVParallelLinear(weights, prefix, method, tp)
        self._o_proj = RowParallelLinear(weights, f"{prefix}.o_proj", method, tp)
        qk_norm = weights.config.qk_norm
        self._q_norm = RMSNorm(weights, f"{prefix}.q_norm") if qk_norm else None
        self._k_norm = RMSNorm(weights, f"{prefix}.k_norm") if qk_norm else None

    def __call__(self, x: torch.Tensor, batch: ModelBatch, rope: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        q, k, v = self._qkv_proj(x)
        if self._q_norm is not None and self._k_norm is not None:
            q, k = self._q_norm(q), self._k_norm(k)
        if not batch.attention.rotates:
            q, k = rotate(q, *rope), rotate(k, *rope)
        return self._o_proj(batch.attention.forward(self._layer, q, k, v, rope))


class LlamaMLP:
    def __init__(self, weights: WeightLoader, layer: int, method: LinearMethod, tp: TensorParallel) -> None:
        prefix = f"model.layers.{layer}.mlp"
        names = [f"{prefix}.gate_proj", f"{prefix}.up_proj"]
        self._gate_up_proj = MergedColumnParallelLinear(weights, names, method, tp)
        self._down_proj = RowParallelLinear(weights, f"{prefix}.down_proj", method, tp)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._down_proj(self._gate_up_proj.silu_gated(x))


MLPFactory = Callable[[WeightLoader, int, LinearMethod, TensorParallel], Callable[[torch.Tensor], torch.Tensor]]
"""Loads the MLP of one layer: [T, hidden] -> [T, hidden]."""


class LlamaDecoderLayer:
    def __init__(
        self, weights: WeightLoader, layer: int, method: LinearMethod, tp: TensorParallel, make_mlp: MLPFactory
    ) -> None:
        prefix = f"model.layers.{layer}"
        self._input_layernorm = RMSNorm(weights, f"{prefix}.input_layernorm")
        self._self_attn = LlamaAttention(weights, layer, method, tp)
        self._post_attention_layernorm = RMSNorm(weights, f"{prefix}.post_attention_layernorm")
        self._mlp = make_mlp(weights, layer, method, tp)

    def __call__(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None,
        batch: ModelBatch,
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x, residual = self._input_layernorm.with_residual(x, residual)
        x = self._self_attn(x, batch, rope)
        x, residual = self._post_attention_layernorm.with_residual(x, residual)
        return self._mlp(x), residual


class LlamaForCausalLM:
    """Loads its weights at construction. ``max_positions`` bounds the rotary tables."""

    def __init__(
        self,
        weights: WeightLoader,
        method: LinearMethod,
        tp: TensorParallel,
        *,
        max_positions: int,
        make_mlp: MLPFactory = LlamaMLP,
    ) -> None:
        config = weights.config
        self._embed_tokens = VocabParallelEmbedding(weights, "model.embed_tokens", tp)
        self._layers = [LlamaDecoderLayer(weights, layer, method, tp, make_mlp) for layer in range(config.num_layers)]
        self._norm = RMSNorm(weights, "model.norm")
        tied = self._embed_tokens if config.tie_word_embeddings else None
        self._lm_head = LMHead(weights, method, tp, tied=tied)
        self._rotary = RotaryEmbedding(config, max_positions, weights.device)

    def forward(self, batch: ModelBatch) -> torch.Tensor:
        """Last hidden state after the final norm, [T, hidden]."""
        x, residual = self._embed_tokens(batch.input_ids), None
        rope = self._rotary.at(batch.positions)
        for layer in self._layers:
            x, residual = layer(x, residual, batch, rope)
        return self._norm.with_residual(x, residual)[0]

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[L, hidden] -> [L, vocab] float32."""
        return self._lm_head(hidden).float()
