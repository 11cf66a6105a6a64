"""config.json of a Hugging Face directory -> ModelConfig. ``auto_map`` and every other key are ignored:
nothing named in a config is ever imported or run."""

from __future__ import annotations

import math
from typing import Any

from engine.weights.config import (
    ARCHITECTURES,
    MAX_LAYERS,
    Architecture,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    RopeType,
    unknown_architecture,
    validate_config,
    validate_rope,
)
from engine.weights.errors import WeightsError
from engine.weights.quantization import quantization_from_hf

_ROPE_TYPES: dict[str, RopeType] = {"default": "default", "linear": "linear", "llama3": "llama3", "yarn": "yarn"}


def config_from_hf(raw: dict[str, Any], source: str) -> ModelConfig:
    """``source`` names the file in errors, WeightsError all of them."""
    try:
        return _config(raw, source)
    except ArithmeticError as error:
        raise WeightsError(f"{source}: its numbers make no model ({error})") from None


def _config(raw: dict[str, Any], source: str) -> ModelConfig:
    reader = _Fields(raw, source)
    architecture = _architecture(raw, source)
    _refuse_unsupported(raw, source)
    qwen3 = architecture in ("qwen3", "qwen3_moe")
    heads = reader.integer("num_attention_heads")
    hidden = reader.integer("hidden_size")
    bias = reader.boolean("attention_bias", False)
    max_positions = reader.integer("max_position_embeddings", 2048)
    rope = _rope(raw, reader, max_positions)
    validate_rope(rope, source)
    if rope.type == "yarn":
        max_positions = max(max_positions, int(rope.factor * rope.original_max_positions))
    config = ModelConfig(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden,
        num_layers=reader.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=reader.integer("num_key_value_heads", heads),
        head_dim=reader.integer("head_dim", 128 if qwen3 else hidden // max(heads, 1)),
        intermediate_size=reader.integer("intermediate_size"),
        rms_norm_eps=reader.real("rms_norm_eps", 1e-6),
        max_positions=max_positions,
        rope=rope,
        tie_word_embeddings=reader.boolean("tie_word_embeddings", False),
        qkv_bias=architecture == "qwen2" or bias,
        o_bias=architecture != "qwen2" and bias,
        qk_norm=qwen3,
        moe=_moe(raw, reader) if architecture == "qwen3_moe" else None,
        quantization=quantization_from_hf(raw.get("quantization_config"), source),
    )
    validate_config(config, source)
    return config


def _architecture(raw: dict[str, Any], source: str) -> Architecture:
    model_type = raw.get("model_type")
    classes = raw.get("architectures")
    named = classes[0] if isinstance(classes, list) and classes else None
    for architecture in ARCHITECTURES:
        if architecture == model_type:
            expected = "".join(part.capitalize() for part in architecture.split("_")) + "ForCausalLM"
            if named not in (None, expected):
                raise unknown_architecture(source, str(named))
            return architecture
    raise unknown_architecture(source, str(named or model_type or "(none)"))


def _moe(raw: dict[str, Any], reader: _Fields) -> MoEConfig:
    """Layer i is a mixture where (i + 1) is a multiple of decoder_sparse_step, unless mlp_only_layers has it."""
    step, dense = reader.integer("decoder_sparse_step", 1), raw.get("mlp_only_layers") or []
    if step < 1 or not isinstance(dense, list) or not all(type(layer) is int for layer in dense):
        raise WeightsError(f"{reader.source}: decoder_sparse_step {step} with mlp_only_layers {dense!r}")
    layers, named = range(min(reader.integer("num_hidden_layers"), MAX_LAYERS)), frozenset(dense)
    return MoEConfig(
        num_experts=reader.integer("num_experts" if raw.get("num_experts") is not None else "num_local_experts"),
        top_k=reader.integer("num_experts_per_tok"),
        intermediate_size=reader.integer("moe_intermediate_size"),
        normalise=reader.boolean("norm_topk_prob", False),
        dense_layers=frozenset(layer for layer in layers if layer in named or (layer + 1) % step),
    )


def _refuse_unsupported(raw: dict[str, Any], source: str) -> None:
    if raw.get("hidden_act", "silu") != "silu":
        raise WeightsError(f"{source}: activation '{raw['hidden_act']}' is not supported (silu is)")
    if raw.get("mlp_bias"):
        raise WeightsError(f"{source}: mlp_bias is not supported")
    layer_types = raw.get("layer_types")
    other = isinstance(layer_types, list) and any(kind != "full_attention" for kind in layer_types)
    if raw.get("use_sliding_window") or other:
        raise WeightsError(f"{source}: sliding-window attention is not supported")


def _rope(raw: dict[str, Any], reader: _Fields, max_positions: int) -> RopeConfig:
    """Both spellings: rope_theta with rope_scaling, and rope_parameters (transformers 5)."""
    scaling = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise WeightsError(f"{reader.source}: rope scaling is not an object")
    fields = _Fields(scaling, f"{reader.source}: rope scaling")
    name = scaling.get("rope_type", scaling.get("type", "default"))
    if not isinstance(name, str) or name not in _ROPE_TYPES:
        raise WeightsError(
            f"{reader.source}: rope scaling '{name}' is not supported; supported are {', '.join(_ROPE_TYPES)}"
        )
    if fields.real("partial_rotary_factor", reader.real("partial_rotary_factor", 1.0)) != 1.0:
        raise WeightsError(f"{reader.source}: partial rotary embedding is not supported")
    original = fields.integer("original_max_position_embeddings", max_positions)
    attention = fields.real("attention_factor", math.nan)
    if math.isnan(attention):
        attention = _mscale_ratio(fields)
    return RopeConfig(
        theta=fields.real("rope_theta", reader.real("rope_theta", 10000.0)),
        type=_ROPE_TYPES[name],
        factor=fields.real("factor", max_positions / original if name == "yarn" else 1.0),
        original_max_positions=original,
        low_freq_factor=fields.real("low_freq_factor", 1.0),
        high_freq_factor=fields.real("high_freq_factor", 4.0),
        beta_fast=fields.real("beta_fast", 32.0) or 32.0,
        beta_slow=fields.real("beta_slow", 1.0) or 1.0,
        attention_factor=None if math.isnan(attention) else attention,
        truncate=fields.boolean("truncate", True),
    )


def _mscale_ratio(fields: _Fields) -> float:
    """DeepSeek's way to give yarn's attention factor: mscale over mscale_all_dim; NaN where not given."""
    above, below, factor = fields.real("mscale", 0.0), fields.real("mscale_all_dim", 0.0), fields.real("factor", 1.0)
    if not above or not below or factor <= 1:
        return math.nan
    return (0.1 * above * math.log(factor) + 1.0) / (0.1 * below * math.log(factor) + 1.0)


class _Fields:
    """Typed access to a JSON object; null counts as absent."""

    def __init__(self, raw: dict[str, Any], source: str) -> None:
        self._raw = raw
        self.source = source

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._value(name, default)
        if type(value) is not int:
            raise WeightsError(f"{self.source}: {name} is {value!r}, expected an integer")
        return value

    def real(self, name: str, default: float) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WeightsError(f"{self.source}: {name} is {value!r}, expected a number")
        return float(value)

    def boolean(self, name: str, default: bool) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise WeightsError(f"{self.source}: {name} is {value!r}, expected true or false")
        return value

    def _value(self, name: str, default: object) -> object:
        value = self._raw.get(name)
        if value is None:
            value = default
        if value is None:
            raise WeightsError(f"{self.source}: {name} is missing")
        return value
