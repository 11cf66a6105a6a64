"""What a runner must know about a model before it reads a weight: shapes, rope, norms. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine.weights.errors import WeightsError
from engine.weights.quantization import QuantizationConfig

Architecture = Literal["llama", "qwen2", "qwen3", "qwen3_moe"]
ARCHITECTURES: tuple[Architecture, ...] = ("llama", "qwen2", "qwen3", "qwen3_moe")
SUPPORTED = "Qwen2/Qwen2.5 (qwen2), Qwen3 (qwen3, qwen3_moe), Llama and SmolLM2 (llama)"

RopeType = Literal["default", "linear", "llama3", "yarn"]

_MAX_DIMENSION = 1 << 24
MAX_LAYERS = 4096
"""Of each of which the tensors are listed before the first one is missed."""


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding: base and how it is stretched (see engine.weights.rope).

    original_max_positions: context of pre-training, for llama3 and yarn. attention_factor: yarn's scale of
    cos and sin, None for the paper's 0.1 ln(factor) + 1. freq_factors: a GGUF's per-frequency divisors
    (``rope_freqs.weight``, how llama.cpp stores llama3 scaling), empty where there are none.
    """

    theta: float = 10000.0
    type: RopeType = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True
    freq_factors: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MoEConfig:
    """num_experts MLPs of intermediate_size, of which each token takes top_k. normalise: their weights sum to 1.
    dense_layers: layers with an ordinary MLP instead."""

    num_experts: int
    top_k: int
    intermediate_size: int
    normalise: bool
    dense_layers: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only transformer of the Llama family.

    vocab_size is the width of the logits. qkv_bias, o_bias and qk_norm say which extra tensors exist.
    max_positions is the longest context the checkpoint claims, rope scaling included. moe: the experts, where
    the MLPs are mixtures. quantization: how linears are stored, where they are not plain floats (GGUF blocks count
    as plain: every tensor names its own type).
    """

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    max_positions: int
    rope: RopeConfig
    tie_word_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    moe: MoEConfig | None = None
    quantization: QuantizationConfig | None = None

    @property
    def q_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim


def validate_config(config: ModelConfig, source: str) -> None:
    """Raise WeightsError for dimensions that no model of this family can have."""
    dimensions = (
        "vocab_size",
        "hidden_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "intermediate_size",
        "max_positions",
    )
    for name in dimensions:
        value = getattr(config, name)
        largest = MAX_LAYERS if name == "num_layers" else _MAX_DIMENSION
        if not 0 < value <= largest:
            raise WeightsError(f"{source}: {name} is {value}, expected a number between 1 and {largest}")
    if config.moe is not None:
        _validate_moe(config.moe, source)
    if config.num_heads % config.num_kv_heads:
        raise WeightsError(
            f"{source}: {config.num_heads} attention heads cannot share {config.num_kv_heads} key/value heads"
        )
    if config.head_dim % 2:
        raise WeightsError(f"{source}: head_dim {config.head_dim} is odd, rotary embedding needs pairs")
    if not 0.0 < config.rms_norm_eps < 1.0:
        raise WeightsError(f"{source}: rms_norm_eps is {config.rms_norm_eps}")
    validate_rope(config.rope, source)
    factors = config.rope.freq_factors
    if factors and len(factors) != config.head_dim // 2:
        raise WeightsError(f"{source}: {len(factors)} rope frequency factors for head_dim {config.head_dim}")


def validate_rope(rope: RopeConfig, source: str) -> None:
    """Raise WeightsError for what would make angles that are no numbers."""
    if not 1.0 < rope.theta < math.inf or not 0.0 < rope.factor < math.inf:
        raise WeightsError(f"{source}: rope theta {rope.theta} with factor {rope.factor}")
    others = [rope.beta_fast, rope.beta_slow, *rope.freq_factors]
    if rope.type in ("yarn", "llama3"):
        others.append(rope.original_max_positions)
    if rope.type == "llama3":
        others.append(rope.high_freq_factor - rope.low_freq_factor)
    if rope.attention_factor is not None:
        others.append(rope.attention_factor)
    if not all(0.0 < value < math.inf for value in others):
        raise WeightsError(f"{source}: rope scaling '{rope.type}' with a value that is not above 0: {rope}")


def _validate_moe(moe: MoEConfig, source: str) -> None:
    if not 0 < moe.top_k <= moe.num_experts <= 4096:
        raise WeightsError(f"{source}: {moe.top_k} experts per token of {moe.num_experts}")
    if not 0 < moe.intermediate_size <= _MAX_DIMENSION:
        raise WeightsError(f"{source}: moe_intermediate_size is {moe.intermediate_size}")


def unknown_architecture(source: str, name: str) -> WeightsError:
    return WeightsError(f"{source}: architecture '{name}' is not supported; supported are {SUPPORTED}")
