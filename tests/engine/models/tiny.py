"""Tiny random models as transformers builds and saves them, one per way in which checkpoints differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

BASE = {
    "vocab_size": 199,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN}),
    "qwen2-yarn-mscale": ("qwen2", {"rope_parameters": {**YARN, "mscale": 0.8, "mscale_all_dim": 0.5}}),
    "qwen2-yarn-factor": ("qwen2", {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 24.0}}),
    "qwen2-7-heads": ("qwen2", {"hidden_size": 112, "num_attention_heads": 7, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3-tied": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-bias": ("qwen3", {"head_dim": 32, "attention_bias": True}),
    "llama": ("llama", {}),
    "llama-tied": (
        "llama",
        {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}},
    ),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-mqa": ("llama", {"num_key_value_heads": 1}),
    "llama-3-heads": ("llama", {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3}),
    "llama-bias": ("llama", {"attention_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 24}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
}
_CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM),
}
MOE = {"head_dim": 32, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}
MOE_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "moe": ("qwen3_moe", MOE),
    "moe-mixed": ("qwen3_moe", {**MOE, "mlp_only_layers": [1], "norm_topk_prob": False}),
    "moe-every-second": ("qwen3_moe", {**MOE, "decoder_sparse_step": 2, "num_experts_per_tok": 1}),
    "moe-wide": ("qwen3_moe", {**MOE, "moe_intermediate_size": 48, "num_experts": 5, "num_experts_per_tok": 5}),
}
"""Apart from VARIANTS: the native runner has no experts."""


def make_model(variant: str, *, seed: int = 0, scale: float = 0.25, **changes: Any) -> Any:
    """A transformers model with random weights, biases and norms included, in float32 on the CPU.

    ``scale`` is large on purpose: attention is then far from uniform, and a wrong rotation shows.
    """
    architecture, settings = {**VARIANTS, **MOE_VARIANTS}[variant]
    config_class, model_class = _CLASSES[architecture]
    model = model_class(config_class(**{**BASE, **settings, **changes})).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1.0 + 0.2 * noise if "norm" in name else scale * noise)
    return model


def save(model: Any, directory: Path, *, max_shard_size: str = "50GB") -> Path:
    model.save_pretrained(directory, safe_serialization=True, max_shard_size=max_shard_size)
    return directory


@torch.no_grad()
def reference_logits(model: Any, tokens: list[int]) -> torch.Tensor:
    return model(torch.tensor([tokens])).logits[0]


def random_tokens(count: int, *, seed: int = 1, vocab: int = 199) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
