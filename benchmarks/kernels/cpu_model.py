"""Tokens per second of the native decoder on a real model, and where a step's time goes.

python -m benchmarks.kernels.cpu_model MODEL.gguf [--threads 0] [--context 250] [--prompt 1500] [--repeat 5]

The second figure of each line adds up each operation's fastest call times its calls: what the step would take if
nothing else ran. With --threads 1 it counts processor time, so it holds on a machine that is shared. Prefill has sums
instead: its last layer computes few rows, so the fastest call says nothing of the others.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.batches import batch_of
from engine.config import EngineConfig
from engine.executor.forward_batch import ForwardBatch
from engine.executor.native_executor import NativeExecutor, refuses
from engine.weights.checkpoint import open_checkpoint


def measure(
    executor: NativeExecutor, name: str, steps: Sequence[ForwardBatch], repeat: int, *, equal_calls: bool = True
) -> None:
    """Runs ``steps`` in order ``repeat`` times and prints one line. ``equal_calls``: an operation's calls are alike."""
    model = executor.model
    model.profile("cpu" if executor.threads == 1 else "wall")
    model.take_profile()
    fastest = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        for batch in steps:
            model.forward(batch, argmax=np.empty(len(batch.logits_index), np.int32), argmax_only=True)
        fastest = min(fastest, time.perf_counter() - start)
    _, profile = model.take_profile()
    each = {op: (entry.undisturbed if equal_calls else entry.seconds) / repeat for op, entry in profile.items()}
    total, tokens = sum(each.values()), sum(len(batch.input_ids) for batch in steps)
    shares = " ".join(f"{op} {seconds * 1e3:.2f}" for op, seconds in each.items() if seconds > 0.005 * total)
    print(f"{name:26} {fastest * 1e3:9.2f} ms {tokens / fastest:7.1f} tok/s", end="")
    kind = "undisturbed" if equal_calls else "in sum"
    print(f"   {kind:11} {total * 1e3:9.2f} ms {tokens / total:7.1f} tok/s   {shares}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=250)
    parser.add_argument("--prompt", type=int, default=1500)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--kv", default="auto")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    checkpoint = open_checkpoint(args.model)
    config = EngineConfig(model=str(args.model), threads=args.threads, kv_cache_dtype=args.kv)
    reason = refuses(config, checkpoint.config)
    if reason:
        raise SystemExit(reason)
    start = time.perf_counter()
    executor = NativeExecutor(config, checkpoint, model_path=args.model)
    print(f"loaded in {time.perf_counter() - start:.2f} s, {executor.threads} threads, KV {executor.kv_dtype}")
    size, vocab = executor.page_size, executor.vocab_size
    for rows in (1, 2, 4, 8, 16, 32):
        name = f"decode {rows} x 1 @ {args.context}"
        measure(executor, name, [batch_of([(args.context - 1, 1)] * rows, size, vocab)], 10 * args.repeat)
    measure(
        executor, f"decode 1 x 1 @ {args.prompt}", [batch_of([(args.prompt - 1, 1)], size, vocab)], 10 * args.repeat
    )
    measure(executor, f"verify 1 x 5 @ {args.context}", [batch_of([(args.context, 5)], size, vocab)], 10 * args.repeat)
    starts = range(0, args.prompt, args.chunk)
    steps = [batch_of([(at, min(args.chunk, args.prompt - at))], size, vocab) for at in starts]
    measure(executor, f"prefill {args.prompt} by {args.chunk}", steps, args.repeat, equal_calls=False)
    executor.close()


if __name__ == "__main__":
    main()
