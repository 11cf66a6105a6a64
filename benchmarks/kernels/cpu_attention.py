"""GFLOP/s of prefill attention and microseconds of decode attention of the native kernels, one layer.

python -m benchmarks.kernels.cpu_attention [--heads 14] [--kv-heads 2] [--head-dim 64] [--kv bfloat16,int8,float32]

Every figure is the best of several repetitions. With --threads 1 processor time is counted, so that other processes on
the machine disturb it less.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from benchmarks.batches import batch_of
from engine.executor.forward_batch import ForwardBatch
from engine.kernels.cpu.loader import load
from engine.kernels.cpu.model import CModelConfig, NativeModel

PAGE_SIZE = 16


def best(model: NativeModel, batch: ForwardBatch, qkv: np.ndarray, *, processor_time: bool) -> float:
    """Seconds of the fastest of the calls of about half a second."""
    clock = time.thread_time if processor_time else time.perf_counter
    fastest, end = float("inf"), time.perf_counter() + 0.5
    while time.perf_counter() < end:
        start = clock()
        model.attention(0, batch, qkv)
        fastest = min(fastest, clock() - start)
    return fastest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=14)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--kv", default="bfloat16,int8,float32")
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    lib = load()
    context = lib.cg_ctx_create(args.threads, -1)
    heads, kv_heads, dim = args.heads, args.kv_heads, args.head_dim
    config = CModelConfig(1, 32, heads, kv_heads, dim, dim, 32, 32, 1e-6, dim**-0.5, 1.0, 1.0)
    inv_freq = (1e6 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)
    prefills = [[(0, 512)], [(1024, 512)], [(0, 2048)]]
    decodes = [[(length - 1, 1)] * rows for rows, length in ((1, 256), (1, 1500), (1, 8000), (16, 250), (16, 1500))]
    rng = np.random.default_rng(0)
    for kv in args.kv.split(","):
        model = NativeModel(lib, context, config, inv_freq)
        model.set_kv(16 * 512, PAGE_SIZE, kv)
        for rows in (*prefills, *decodes):
            batch = batch_of(rows, PAGE_SIZE, 32, row_pages=512)
            qkv = rng.standard_normal((len(batch.input_ids), (heads + 2 * kv_heads) * dim)).astype(np.float32)
            seconds = best(model, batch, qkv, processor_time=args.threads == 1)
            pairs = sum(start * count + count * (count + 1) / 2 for start, count in rows)
            shape = f"{len(rows)} x {rows[0][1]} token(s) after {rows[0][0]}"
            read = sum(start + count for start, count in rows) * model.page_bytes(PAGE_SIZE, kv) / PAGE_SIZE
            print(
                f"{kv:9} {shape:28} {seconds * 1e6:9.0f} us {4 * dim * heads * pairs / seconds / 1e9:6.0f} GFLOP/s"
                f" {read / seconds / 1e9:6.1f} GB/s of KV"
            )
        model.close()


if __name__ == "__main__":
    main()
