"""What a figure depends on besides the code: commit, processor, its limits, and what a process tree uses."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
READ_BYTES = 400_000_000
LIMIT_SECONDS = 0.8
ISA_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "amx_bf16")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def commit() -> str:
    """The short hash of HEAD, with ``+`` where tracked files differ from it; empty outside a git checkout."""
    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine() -> dict[str, Any]:
    """Processor, cores that this process may use, memory, and the instruction sets that kernels choose by."""
    info: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            info[key.strip()] = value.strip()
    flags = set(info.get("flags", "").split())
    family = f"family {info.get('cpu family')} model {info.get('model')}"
    return {
        "cpu": f"{info.get('model name', os.uname().machine)} ({family})",
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in ISA_FLAGS if flag in flags],
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_before": round(os.getloadavg()[0], 2),
    }


def limits() -> dict[str, float]:
    """What plain loops on all cores sustain, about 2 seconds: GB/s of passes over ``READ_BYTES`` that lie in large
    pages, and int8 GOP/s; the median pass of each. Empty without the native kernels.

    A machine that is shared with others may change by a factor of two within minutes, so a figure's share of a limit
    means something only beside a limit taken next to it.
    """
    try:
        from engine.kernels.cpu.linear import Context, Isa, huge_bytes
        from engine.kernels.cpu.loader import load

        lib, context = load(), Context(threads=len(os.sched_getaffinity(0)))
    except (ImportError, OSError, RuntimeError, TypeError):
        return {}
    memory = huge_bytes(READ_BYTES)
    memory[:] = 1
    rounds = 200_000 if context.isa == Isa.AVX512 else 20_000
    try:
        operations = lib.cg_measure_dots(context.handle, 1) * rounds
        read = READ_BYTES / median_seconds(lambda: lib.cg_measure_read(context.handle, memory.ctypes.data, READ_BYTES))
        dots = operations / median_seconds(lambda: lib.cg_measure_dots(context.handle, rounds))
    finally:
        context.close()
    return {"read_gb_s": round(read / 1e9, 1), "int8_gop_s": round(dots / 1e9)}


def median_seconds(call: Callable[[], object]) -> float:
    """Of calls one after another for ``LIMIT_SECONDS``."""
    times, end = [], time.perf_counter() + LIMIT_SECONDS
    while time.perf_counter() < end or not times:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tree(pid: int) -> list[psutil.Process]:
    """The process and all that it started; empty when it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def cpu_seconds(pid: int) -> float:
    """User and system time of a process tree."""
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def resident_mb(pid: int) -> float:
    """Proportional set size of a process tree, MB of 2**20: shared pages count once."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def model_work(model: Path) -> dict[str, int]:
    """What a dense GGUF model costs: bytes that a decode step reads, int8 operations of a prefilled token.

    The head is read for every decoded token and multiplied for one token of a prompt only. Empty for other files.
    """
    if model.suffix != ".gguf":
        return {}
    from gguf import GGUFReader

    tensors = {tensor.name: tensor for tensor in GGUFReader(model).tensors}
    if "output.weight" in tensors:
        tensors.pop("token_embd.weight", None)
    linear = [t for name, t in tensors.items() if name.startswith("blk.") and len(t.shape) == 2]
    return {
        "bytes_per_token": sum(int(tensor.n_bytes) for tensor in tensors.values()),
        "prefill_ops_per_token": 2 * sum(int(tensor.n_elements) for tensor in linear),
    }
