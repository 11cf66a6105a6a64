"""``callgate doctor``: what this machine can run, and for what it cannot, why and what to do."""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from engine.model_store import cache_home, list_cached
from engine.platform.host import available_memory, cpu_flags, has_fast_bfloat16, total_memory, usable_threads
from server.cli import version

FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_int8",
    "amx_bf16",
)
OPTIONAL = (
    ("huggingface_hub", "hub ids as --model", "callgate[hub]"),
    ("ziglang", "building the CPU kernels without a compiler", "callgate[zig]"),
    ("flash_attn", "FlashAttention on CUDA", "callgate[flash]"),
    ("triton", "Triton kernels on CUDA", "triton"),
)


class Finding(NamedTuple):
    """One line. ok: True, False, or None for a plain fact."""

    topic: str
    ok: bool | None
    text: str


def run(arguments: argparse.Namespace) -> int:
    marks = {True: "ok", False: "no", None: "  "}
    for finding in examine():
        print(f"{marks[finding.ok]}  {finding.topic:14} {finding.text}")
    return 0


def examine() -> Iterator[Finding]:
    yield Finding("callgate", None, f"{version()}, Python {platform.python_version()}, {platform.platform()}")
    yield from _cpu()
    yield from _memory()
    yield _kernels()
    yield _cuda()
    yield from _models()
    yield from _packages()


def _cpu() -> Iterator[Finding]:
    flags = cpu_flags()
    known = [name for name in FEATURES if name in flags]
    count, usable = os.cpu_count() or 1, usable_threads()
    yield Finding(
        "cpu", None, f"{usable} of {count} cores usable; {' '.join(known) or 'no vector extensions known here'}"
    )
    if not has_fast_bfloat16(flags):
        yield Finding("bfloat16", None, "not in hardware: the torch runner uses float32, the native kernels do without")


def _memory() -> Iterator[Finding]:
    free, total = available_memory(), total_memory()
    enough = free > 2e9
    hint = "" if enough else ": the default model needs about 2 GB"
    yield Finding("memory", enough, f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB{hint}")
    place = next(path for path in (cache_home(), *cache_home().parents) if path.exists())
    disk = shutil.disk_usage(place).free
    writable = os.access(place, os.W_OK)
    problem = "" if writable else ", not writable: set CALLGATE_HOME"
    yield Finding(
        "disk", writable and disk > 1e9, f"{disk / 1e9:.1f} GB free for the model cache in {cache_home()}{problem}"
    )


def _kernels() -> Finding:
    """The native CPU kernels: built, will be built, or why not."""
    from engine.kernels.cpu import build

    return Finding("cpu kernels", build.find_library() is not None, build.describe())


def _cuda() -> Finding:
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return Finding("cuda", False, "no NVIDIA device in /dev: the CPU serves")
    if importlib.util.find_spec("torch") is None:
        return Finding("cuda", False, "an NVIDIA device is here, but torch is not installed")
    build_tag = metadata.version("torch").partition("+")[2]
    if build_tag == "cpu":
        return Finding(
            "cuda", False, "an NVIDIA device is here, but this torch is a CPU build: install a CUDA build of torch"
        )
    return Finding("cuda", True, f"NVIDIA device in /dev, torch {metadata.version('torch')}")


def _models() -> Iterator[Finding]:
    for entry, path in list_cached():
        size = f"{entry.size / 1e6:.0f} MB"
        text = f"{entry.name} ({size}): {path}" if path else f"{entry.name} ({size}): callgate pull {entry.name}"
        yield Finding("model", path is not None, text)


def _packages() -> Iterator[Finding]:
    for module, use, requirement in OPTIONAL:
        found = importlib.util.find_spec(module) is not None
        text = f"{module}: {use}" if found else f"{module}: {use}; {sys.executable} -m pip install '{requirement}'"
        yield Finding("optional", found, text)
