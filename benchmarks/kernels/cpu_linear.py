"""GB/s and GOP/s of the quantized linear layers, beside what plain loops read and multiply in the same run.

python -m benchmarks.kernels.cpu_linear [--formats Q5_0,Q8_0] [--shapes 896x4864] [--rows 1,4,64,512] [--threads 0]

Figures are of the best call, with the median's share of that. Weights rotate through enough copies that they come from
memory, as they do in a decode step. CALLGATE_BENCH_CPU_TIME=1 with --threads 1 counts CPU time, for a
machine that is not idle.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from collections.abc import Callable

import numpy as np

from engine.kernels.cpu.linear import Context, Format, Isa, Linear, Rows, Weight, huge_bytes, row_bytes
from engine.kernels.cpu.loader import load

FORMATS = (Format.Q4_0, Format.Q4_1, Format.Q5_0, Format.Q8_0, Format.Q4_K, Format.Q6_K)
SHAPES = ((896, 1152), (896, 896), (896, 9728), (4864, 896))
ROTATE_BYTES = 200_000_000
SLICE_BYTES = 4_000_000
CPU_TIME = os.environ.get("CALLGATE_BENCH_CPU_TIME") == "1"


def clock() -> float:
    return time.thread_time() if CPU_TIME else time.perf_counter()


def timings(call: Callable[[int], object], count: int, seconds: float = 0.4) -> list[float]:
    """Sorted seconds of call(0), call(1), ... call(count - 1), over and over."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 * count or time.perf_counter() < end:
        for i in range(count):
            start = clock()
            call(i)
            times.append(clock() - start)
    return sorted(times[count:])


def random_weight(fmt: Format, n: int, k: int, rng: np.random.Generator) -> Weight:
    """Random codes with finite scales."""
    raw = rng.integers(0, 256, (n, row_bytes(fmt, k)), dtype=np.uint8)
    scales = {Format.Q4_1: (0, 2), Format.Q5_1: (0, 2), Format.Q4_K: (0, 2), Format.Q5_K: (0, 2), Format.Q6_K: (208,)}
    block = row_bytes(fmt, 256 if fmt >= Format.Q4_K else 32)
    blocks = raw.reshape(n, -1, block)
    for at in scales.get(fmt, (0,)):
        values = rng.standard_normal(blocks.shape[:2]).astype(np.float16) * np.float16(0.01)
        blocks[:, :, at : at + 2] = values[..., None].view(np.uint8)
    return Weight(fmt, n, k, raw)


def limits(context: Context) -> tuple[float, float]:
    """GB/s read and int8 GOP/s of all threads together."""
    lib, memory = load(), huge_bytes(ROTATE_BYTES)
    memory[:] = 1
    count = ROTATE_BYTES // SLICE_BYTES
    start = memory.ctypes.data
    read = timings(lambda i: lib.cg_measure_read(context.handle, start + i * SLICE_BYTES, SLICE_BYTES), count, 1.0)[0]
    rounds = 1_000_000 if context.isa == Isa.AVX512 else 20_000
    operations = lib.cg_measure_dots(context.handle, 1)
    dots = timings(lambda _: lib.cg_measure_dots(context.handle, rounds), 1, 1.0)[0]
    return SLICE_BYTES / read / 1e9, operations * rounds / dots / 1e9


def packed_bytes(fmt: Format, k: int) -> int:
    """Bytes of one packed block of 32 outputs."""
    layer = Linear.stack([random_weight(fmt, 32, k, np.random.default_rng(0))])
    size = layer.nbytes
    layer.close()
    return size


def rotating(layer: Linear) -> list[Linear]:
    """Copies of a layer in one run of memory, more than any cache holds, as the layers of a model lie."""
    size = -(-layer.blob().nbytes // 4096) * 4096
    count = 1 + ROTATE_BYTES // size
    arena = huge_bytes(count * size)
    copies = []
    for i in range(count):
        memory = arena[i * size : i * size + layer.blob().nbytes]
        memory[:] = layer.blob()
        copies.append(Linear.from_blob(memory))
    return copies


def measure(context: Context, fmt: Format, shape: tuple[int, int], counts: list[int]) -> list[tuple[int, float, float]]:
    """(rows, best seconds, median seconds) of one layer."""
    k, n = shape
    rng = np.random.default_rng(0)
    layer = Linear.stack([random_weight(fmt, n, k, rng)])
    copies = rotating(layer)
    x = Rows.of(context, layer.rows_kind, rng.standard_normal((max(counts), k)).astype(np.float32))
    struct, forward, results = x.struct(), load().cg_linear_forward, []
    for m in counts:
        y = np.zeros((m, n), np.float32)
        args = (ctypes.addressof(struct), y.ctypes.data, n, m, 0)
        handles = [c.handle for c in copies]
        times = timings(lambda i, a=args, h=handles: forward(context.handle, h[i], *a), len(handles))
        results.append((m, times[0], times[len(times) // 2]))
    for c in (*copies, layer):
        c.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default=",".join(f.name for f in FORMATS))
    parser.add_argument("--shapes", default=",".join(f"{k}x{n}" for k, n in SHAPES), help="KxN, comma separated")
    parser.add_argument("--rows", default="1,2,4,8,16,64,512")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--isa", default="AUTO", choices=[i.name for i in Isa])
    arguments = parser.parse_args()
    context = Context(arguments.threads, Isa[arguments.isa])
    bandwidth, peak = limits(context)
    print(f"{context.threads} threads, {context.isa.name}: read {bandwidth:.1f} GB/s, int8 {peak:.0f} GOP/s")
    counts = [int(m) for m in arguments.rows.split(",")]
    for name in arguments.formats.split(","):
        for text in arguments.shapes.split(","):
            k, n = (int(v) for v in text.split("x"))
            if row_bytes(Format[name], k) == 0:
                continue
            size = -(-n // 32) * packed_bytes(Format[name], k)
            for m, best, median in measure(context, Format[name], (k, n), counts):
                read, dots = size / best / 1e9, 2.0 * m * n * k / best / 1e9
                shares = (
                    f"{read / bandwidth:4.0%} of read, {dots / peak:4.0%} of int8 (median {best / median:4.0%} of that)"
                )
                print(f"{name:5} K={k:5} N={n:6} rows={m:4} {read:6.1f} GB/s {dots:7.0f} GOP/s  {shares}")
    context.close()


if __name__ == "__main__":
    main()
