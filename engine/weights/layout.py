"""Which tensors a model of this config has, and their shapes: the one list that files are checked against."""

from __future__ import annotations

from engine.weights.config import ModelConfig


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Hugging Face name -> shape, [out, in] for matrices. ``lm_head.weight`` only where it is untied."""
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        out.update({prefix + name: shape for name, shape in _layer_tensors(config).items()})
    out["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        out["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return out


def _layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, ffn, q, kv = config.hidden_size, config.intermediate_size, config.q_size, config.kv_size
    out: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        out |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.o_bias:
        out["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        out |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return out
