"""Quantized checkpoints of tiny models, packed bit by bit as the formats are published, and what they must mean."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

GROUP = 32
AWQ_PLACES = (0, 2, 4, 6, 1, 3, 5, 7)
"""AutoAWQ's gemm layout: nibble i of a word holds the word's output AWQ_PLACES[i]."""

Tensors = dict[str, torch.Tensor]


def pack_words(values: np.ndarray, places: tuple[int, ...] = tuple(range(8))) -> torch.Tensor:
    """[r, 8 c] of 0..15 -> int32 [r, c], nibble by nibble."""
    words = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for nibble, place in enumerate(places):
        words |= values[:, place::8].astype(np.uint32) << np.uint32(4 * nibble)
    return torch.from_numpy(words.view(np.int32))


def four_bits(weight: torch.Tensor, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, torch.Tensor]:
    """weight [n, k], group of each input -> q [n, k], zeros and scales [n, g], and the values they stand for."""
    count = int(groups.max()) + 1
    values = weight.numpy()
    scales, zeros = np.zeros((len(values), count), np.float16), np.zeros((len(values), count), np.int64)
    for group in range(count):
        part = values[:, groups == group]
        scales[:, group] = (part.max(1) - part.min(1)) / 15 + 1e-4
        zeros[:, group] = np.clip(np.round(-part.min(1) / scales[:, group].astype(np.float32)), 1, 15)
    wide, offset = scales.astype(np.float32)[:, groups], zeros[:, groups]
    q = np.clip(np.round(values / wide) + offset, 0, 15).astype(np.int64)
    return q, zeros, scales, torch.from_numpy((q - offset).astype(np.float32) * wide)


def awq(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    q, zeros, scales, meaning = four_bits(weight, np.arange(weight.shape[1]) // GROUP)
    tensors = {
        f"{name}.qweight": pack_words(q.T, AWQ_PLACES),
        f"{name}.qzeros": pack_words(zeros.T, AWQ_PLACES),
        f"{name}.scales": torch.from_numpy(scales.T.copy()),
    }
    return tensors, meaning


def gptq(name: str, weight: torch.Tensor, *, v2: bool = False, shuffled: bool = False):
    groups = np.arange(weight.shape[1]) // GROUP
    if shuffled:
        source = f"{name.rsplit('.', 1)[0]} {len(groups)}"  # linears of the same input share its order
        groups = np.random.default_rng(zlib.crc32(source.encode())).permutation(groups)
    q, zeros, scales, meaning = four_bits(weight, groups)
    tensors = {
        f"{name}.qweight": pack_words(q).T.contiguous(),
        f"{name}.qzeros": pack_words((zeros if v2 else zeros - 1).T),
        f"{name}.scales": torch.from_numpy(scales.T.copy()),
        f"{name}.g_idx": torch.from_numpy(groups.astype(np.int32)),
    }
    return tensors, meaning


def fp8_tensor(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    scale = weight.abs().max() / 448
    data = (weight / scale).to(torch.float8_e4m3fn)
    tensors = {f"{name}.weight": data, f"{name}.weight_scale": scale, f"{name}.input_scale": torch.tensor(1.0)}
    return tensors, data.float() * scale


def fp8_block(name: str, weight: torch.Tensor, block: tuple[int, int] = (48, 32)) -> tuple[Tensors, torch.Tensor]:
    rows, columns = (-(-size // step) for size, step in zip(weight.shape, block, strict=True))
    scales = torch.zeros(rows, columns)
    data, meaning = torch.empty(weight.shape, dtype=torch.float8_e4m3fn), torch.empty(weight.shape)
    for i in range(rows):
        for j in range(columns):
            place = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
            scales[i, j] = weight[place].abs().max() / 448
            data[place] = (weight[place] / scales[i, j]).to(torch.float8_e4m3fn)
            meaning[place] = data[place].float() * scales[i, j]
    return {f"{name}.weight": data, f"{name}.weight_scale_inv": scales}, meaning


FORMATS: dict[str, tuple[dict, Callable[..., tuple[Tensors, torch.Tensor]]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}, awq),
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}, gptq),
    "gptq-v2": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
        lambda name, weight: gptq(name, weight, v2=True),
    ),
    "gptq-act-order": (
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True},
        lambda name, weight: gptq(name, weight, shuffled=True),
    ),
    "fp8-tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, fp8_tensor),
    "fp8-block": ({"quant_method": "fp8", "weight_block_size": [48, 32]}, fp8_block),
}


def quantize(directory: Path, form: str, *, skip: tuple[str, ...] = ()) -> Tensors:
    """Replace a saved model's linears by quantized ones. Returns the plain tensors that the result stands for."""
    settings, convert = FORMATS[form]
    plain = load_file(directory / "model.safetensors")
    stored: Tensors = {}
    for name, tensor in list(plain.items()):
        module = name.removesuffix(".weight")
        if tensor.dim() == 2 and "_proj" in name and not any(part in name for part in skip):
            tensors, plain[name] = convert(module, tensor)
            stored.update(tensors)
        else:
            stored[name] = tensor
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, directory / "model.safetensors")
    path = directory / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"] = {**settings, **({"modules_to_not_convert": list(skip)} if skip else {})}
    path.write_text(json.dumps(config))
    return plain
