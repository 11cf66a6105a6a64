"""Writes a GGUF model in the forms that peers without GGUF serve: ``python -m benchmarks.peer_models M.gguf DIR``.

DIR/bf16 is a Hugging Face directory with bf16 weights, DIR/w8a8 the same with the linear layers rounded to int8 (one
scale per output row, activations quantized per token while serving) as compressed-tensors describes it. Both come from
what the GGUF file holds, so that all servers answer from the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def write_bf16(gguf: Path, out: Path) -> None:
    """The GGUF file as a Hugging Face directory. Peak memory: the model in float32."""
    out.mkdir(parents=True, exist_ok=True)
    where = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.bfloat16, **where)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **where)
    tokenizer.save_pretrained(out)
    config: dict[str, Any] = model.config.to_dict()
    config.pop("quantization_config", None)
    # The file may hold an output head that differs from the embedding, so the two are kept apart.
    config |= {"tie_word_embeddings": False, "dtype": "bfloat16", "torch_dtype": "bfloat16"}
    config["architectures"] = [type(model).__name__]
    stops = sorted({tokenizer.eos_token_id, *stop_ids(tokenizer)})
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str))
    (out / "generation_config.json").write_text(json.dumps({"eos_token_id": stops, "pad_token_id": stops[0]}))
    tensors = {name: value.detach().clone().contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def stop_ids(tokenizer: Any) -> list[int]:
    """Tokens that end a turn or a text in the models that are compared."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[text] for text in ("<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>") if text in vocabulary]


def write_w8a8(source: Path, out: Path) -> None:
    """``source`` with int8 linear layers, rounded to nearest."""
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            shutil.copy(path, out / path.name)
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": W8A8}, indent=1))
    tensors: dict[str, torch.Tensor] = {}
    with safe_open(source / "model.safetensors", "pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            weight = file.get_tensor(name)
            if not name.endswith("_proj.weight"):
                tensors[name] = weight
                continue
            scale = (weight.float().abs().amax(1, keepdim=True).clamp(min=1e-8) / 127).bfloat16().float()
            tensors[name] = (weight.float() / scale).round().clamp(-127, 127).to(torch.int8)
            tensors[f"{name}_scale"] = scale.bfloat16()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    if not (args.out / "bf16" / "model.safetensors").exists():
        write_bf16(args.gguf, args.out / "bf16")
    write_w8a8(args.out / "bf16", args.out / "w8a8")


if __name__ == "__main__":
    main()
