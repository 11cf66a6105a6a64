"""GGUF metadata and tensor names -> ModelConfig and the Hugging Face names used everywhere else."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.weights.config import (
    ARCHITECTURES,
    ModelConfig,
    RopeConfig,
    RopeType,
    unknown_architecture,
    validate_config,
)
from engine.weights.errors import WeightsError
from engine.weights.gguf_file import GGUFFile
from engine.weights.tensors import RawTensor

_TOP_NAMES: Final = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FREQS: Final = "rope_freqs.weight"


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    source = str(file.path)
    name = file.text("general.architecture")
    if name not in ARCHITECTURES:
        raise unknown_architecture(source, name or "(none)")
    if "token_embd.weight" not in file.tensors:
        raise WeightsError(f"{source}: tensor token_embd.weight is missing")

    def integer(key: str, default: int | None = None) -> int:
        return int(file.number(f"{name}.{key}", default))

    heads, hidden = integer("attention.head_count"), integer("embedding_length")
    head_dim = integer("attention.key_length", hidden // max(heads, 1))
    if integer("rope.dimension_count", head_dim) != head_dim:
        raise WeightsError(f"{source}: partial rotary embedding is not supported")
    max_positions = integer("context_length")
    config = ModelConfig(
        architecture=name,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        num_layers=integer("block_count"),
        num_heads=heads,
        num_kv_heads=integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        intermediate_size=integer("feed_forward_length"),
        rms_norm_eps=file.number(f"{name}.attention.layer_norm_rms_epsilon"),
        max_positions=max_positions,
        rope=_rope(file, name, max_positions),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
    )
    validate_config(config, source)
    return config


def _rope(file: GGUFFile, architecture: str, max_positions: int) -> RopeConfig:
    prefix = f"{architecture}.rope"
    kind = file.text(f"{prefix}.scaling.type", "none")
    types: dict[str, RopeType] = {"none": "default", "": "default", "linear": "linear", "yarn": "yarn"}
    if kind not in types:
        raise WeightsError(f"{file.path}: rope scaling '{kind}' is not supported; supported are none, linear, yarn")
    factor = file.number(f"{prefix}.scaling.factor", file.number(f"{prefix}.scale_linear", 1.0))
    attention = file.number(f"{prefix}.scaling.attn_factor", 0.0)
    if attention:  # llama.cpp multiplies the paper's factor by it
        attention *= 0.1 * math.log(max(factor, 1.0)) + 1.0
    freqs = file.tensors.get(_ROPE_FREQS)
    return RopeConfig(
        theta=file.number(f"{prefix}.freq_base", 10000.0),
        type=types[kind] if factor != 1.0 else "default",
        factor=factor,
        original_max_positions=int(file.number(f"{prefix}.scaling.original_context_length", max_positions)),
        beta_fast=file.number(f"{prefix}.scaling.yarn_beta_fast", 32.0),
        beta_slow=file.number(f"{prefix}.scaling.yarn_beta_slow", 1.0),
        attention_factor=attention or None,
        freq_factors=tuple(freqs.to_float32().ravel().tolist()) if freqs is not None else (),
    )


def canonical_tensors(file: GGUFFile, config: ModelConfig) -> dict[str, RawTensor]:
    """Tensors under their Hugging Face names, in the order of the file. Llama's q and k keep the file's row
    order here; ``unpermute`` restores it when they are read."""
    out: dict[str, RawTensor] = {}
    for name, tensor in file.tensors.items():
        block = _BLOCK.fullmatch(name)
        if name in _TOP_NAMES:
            out[_TOP_NAMES[name]] = tensor
        elif block and block[2] in _BLOCK_NAMES:
            out[f"model.layers.{block[1]}.{_BLOCK_NAMES[block[2]]}.{block[3]}"] = tensor
        elif name != _ROPE_FREQS:
            raise WeightsError(f"{file.path}: tensor {name} belongs to no supported {config.architecture} model")
    return out


def unpermute(name: str, config: ModelConfig) -> npt.NDArray[np.int64] | None:
    """Row order that undoes llama.cpp's q/k permutation (rotary pairs stored side by side), or None.

    GGUF files of architecture ``llama`` store pair (i, i + head_dim/2) of each head as rows (2i, 2i + 1);
    those of qwen2 and qwen3 do not.
    """
    if config.architecture != "llama" or ".self_attn." not in name:
        return None
    if name.rsplit(".", 2)[1] not in ("q_proj", "k_proj"):
        return None
    heads = config.num_heads if ".q_proj." in name else config.num_kv_heads
    stored = np.arange(heads * config.head_dim, dtype=np.int64)
    return stored.reshape(heads, config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
