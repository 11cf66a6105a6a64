"""How far quantized weights and KV move the logits: KL divergence and top-1 agreement with the same model in float32.

python -m benchmarks.agreement MODEL [--tokens 2000] [--settings auto,int8,int4,auto/int8]

MODEL is a .gguf file or a directory. The reference is the torch runner in float32 on the dequantised weights. A setting
is a --quantization of the native runner, with a --kv-cache-dtype after a slash. The text is this project's own: half
documentation, half Python. Prints one line per setting.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from benchmarks.serving.machine import ROOT
from engine.config import EngineConfig, Quantization
from engine.executor.forward_batch import ForwardBatch
from engine.executor.native_executor import NativeExecutor
from engine.executor.torch_executor import TorchExecutor
from engine.text.load import load_tokenizer
from engine.weights.checkpoint import open_checkpoint

FloatArray = npt.NDArray[np.float32]
SEQUENCE, STEP, PAGE = 500, 125, 25
"""Tokens that see each other, and of one step (a vocabulary of floats each); both whole pages."""


def sequences(model: Path, count: int) -> list[npt.NDArray[np.int32]]:
    """``count`` tokens in sequences of SEQUENCE: from docs/ and engine/ in turn."""
    tokenizer = load_tokenizer(str(model))
    texts = [("docs", "*.md"), ("engine/scheduler", "*.py")]
    ids = []
    for folder, pattern in texts:
        text = "\n".join(path.read_text("utf-8") for path in sorted((ROOT / folder).glob(pattern)))
        ids.append(np.array(tokenizer.encode(text[: 40 * count]), np.int32))
    pieces = []
    for index in range(count // SEQUENCE):
        start = index // len(ids) * SEQUENCE
        pieces.append(ids[index % len(ids)][start : start + SEQUENCE])
    return pieces


def steps(tokens: npt.NDArray[np.int32]) -> Iterator[ForwardBatch]:
    """One sequence in steps whose every token gets logits."""
    for start in range(0, len(tokens), STEP):
        positions = np.arange(start, start + STEP, dtype=np.int32)
        yield ForwardBatch(
            input_ids=tokens[start : start + STEP],
            positions=positions,
            cu_seqlens=np.array([0, STEP], np.int32),
            seq_lens=np.array([start + STEP], np.int32),
            page_table=np.arange((start + STEP) // PAGE, dtype=np.int32)[None],
            slot_mapping=positions,
            logits_index=np.arange(STEP, dtype=np.int32),
            page_size=PAGE,
        )


def log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float32)


def compare(reference: TorchExecutor, model: Path, setting: str, pieces: list[npt.NDArray[np.int32]]) -> dict[str, Any]:
    """KL(reference || setting) in nats and the share of equal argmax, over all positions."""
    quantization, _, kv = setting.partition("/")
    if quantization not in get_args(Quantization):
        raise SystemExit(f"{quantization} is no --quantization")
    settings = {"quantization": quantization, "kv_cache_dtype": kv or "auto"}
    config = EngineConfig(model=str(model), page_size=PAGE, kv_pages=4 * SEQUENCE // PAGE, **settings)
    native = NativeExecutor(config, open_checkpoint(model))
    divergence: list[float] = []
    equal = 0
    for tokens in pieces:
        for batch in steps(tokens):
            wanted = log_softmax(reference.logits(reference.forward(batch), batch.logits_index))
            found = log_softmax(native.model.forward(batch))
            equal += int((wanted.argmax(axis=-1) == found.argmax(axis=-1)).sum())
            divergence += (np.exp(wanted) * (wanted - found)).sum(axis=-1).tolist()
    read = native.linear_bytes / 1e9
    native.close()
    count = len(divergence)
    return {"tokens": count, "top1": equal / count, "kl": float(np.mean(divergence)), "gb": read}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--settings", type=lambda text: text.split(","), default=["auto", "auto/int8"])
    args = parser.parse_args()
    exact = EngineConfig(
        model=str(args.model), dtype="float32", device="cpu", page_size=PAGE, kv_pages=4 * SEQUENCE // PAGE
    )
    reference = TorchExecutor(exact, open_checkpoint(args.model))
    pieces = sequences(args.model, args.tokens)
    for setting in args.settings:
        found = compare(reference, args.model, setting, pieces)
        print(
            f"{setting:12} {found['tokens']} tokens, top-1 {found['top1']:.2%}, KL {found['kl']:.5f}, "
            f"{found['gb']:.3f} GB read per decoded token",
            flush=True,
        )


if __name__ == "__main__":
    main()
