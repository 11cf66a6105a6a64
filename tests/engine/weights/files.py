"""Builders of small model files, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], *, edit: Any = None, cut: int = 0) -> Path:
    """float32 tensors; ``edit(header)`` may change the header, ``cut`` bytes are missing at the end."""
    header: dict[str, Any] = {}
    body = b""
    for name, array in tensors.items():
        data = array.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    if edit is not None:
        header = edit(header) or header
    text = json.dumps(header).encode()
    raw = len(text).to_bytes(8, "little") + text + body
    path.write_bytes(raw[: len(raw) - cut])
    return path


def random_tensors(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


def random_blocks(kind: Q, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Random bytes that are valid blocks of a quantized type, with finite scales: uint8 [rows, bytes]."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return rng.integers(0, 60, (rows, columns // block * size), dtype=np.uint8)


def write_gguf(
    path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, tuple[np.ndarray, Q]]
) -> Path:
    """``tensors``: name -> (float32 array or stored blocks, type)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, value)
    for name, (array, kind) in tensors.items():
        if kind in (Q.F32, Q.F16):
            writer.add_tensor(name, array.astype(np.float32 if kind == Q.F32 else np.float16))
        else:
            blocks = array if array.dtype == np.uint8 else gguf.quants.quantize(array, kind)
            writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """Hugging Face name -> GGUF name, written independently of the reader."""
    top = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in top:
        return top[name]
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def permute_for_gguf(array: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of architecture llama."""
    half = array.shape[0] // heads // 2
    return array.reshape(heads, 2, half, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
