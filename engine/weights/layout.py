"""Which tensors a model of this config has, and their shapes: the one list that files are checked against."""

from __future__ import annotations

from engine.weights.config import ModelConfig
from engine.weights.errors import WeightsError


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> stored shape, [out, in] for plain matrices. ``lm_head.weight`` only where it is untied."""
    linears = linear_shapes(config)
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        out.update({prefix + name: shape for name, shape in _vectors(config).items()})
        if config.moe is not None and layer not in config.moe.dense_layers:
            out[f"{prefix}mlp.gate.weight"] = (config.moe.num_experts, config.hidden_size)
    for module, shape in linears.items():
        out.update(_stored(config, module, shape))
    out["model.norm.weight"] = (config.hidden_size,)
    return out


def linear_shapes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Module name of every linear -> (outputs, inputs), however its weight is stored."""
    hidden, q, kv = config.hidden_size, config.q_size, config.kv_size
    out: dict[str, tuple[int, int]] = {}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            out[f"{prefix}.self_attn.{name}_proj"] = (size, hidden)
        out[f"{prefix}.self_attn.o_proj"] = (hidden, q)
        if config.moe is None or layer in config.moe.dense_layers:
            mlps, width = [f"{prefix}.mlp"], config.intermediate_size
        else:
            mlps = [f"{prefix}.mlp.experts.{expert}" for expert in range(config.moe.num_experts)]
            width = config.moe.intermediate_size
        for mlp in mlps:
            out |= {f"{mlp}.gate_proj": (width, hidden), f"{mlp}.up_proj": (width, hidden)}
            out[f"{mlp}.down_proj"] = (hidden, width)
    if not config.tie_word_embeddings:
        out["lm_head"] = (config.vocab_size, hidden)
    return out


def _stored(config: ModelConfig, module: str, shape: tuple[int, int]) -> dict[str, tuple[int, ...]]:
    quantization = config.quantization
    if quantization is None or not quantization.covers(module):
        return {f"{module}.weight": shape}
    reason = quantization.refuses(*shape)
    if reason is not None:
        raise WeightsError(f"{module}: {reason}")
    return {f"{module}.{suffix}": stored for suffix, stored in quantization.tensors(*shape).items()}


def _vectors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, q, kv = config.hidden_size, config.q_size, config.kv_size
    out: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qkv_bias:
        out |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.o_bias:
        out["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        out |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return out
