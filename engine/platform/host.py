"""The host's cores, instruction sets and memory, as this process may use them. Imports no torch."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")


def usable_threads(requested: int = 0) -> int:
    """``requested``, or every core that this process may run on."""
    if requested > 0:
        return requested
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def calm_openmp() -> None:
    """Let idle OpenMP threads sleep instead of spin. Call before torch is imported; a user's own setting stands.

    The model shares its cores with the API and text processes, and a spinning thread takes the core from the one
    it waits for: on two busy cores a decode step of a 135M model took 0.2 s and more spinning, 0.03 to 0.08 s sleeping.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def cpu_flags(cpuinfo: Path = _CPUINFO) -> frozenset[str]:
    """Instruction-set flags as Linux names them; empty where the system does not say."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def has_fast_bfloat16(flags: frozenset[str]) -> bool:
    """True where the CPU multiplies bfloat16 in hardware; elsewhere float32 is faster."""
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def available_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes that can still be used: the system's figure, or what the container's limit leaves if that is less. The page
    cache counts as available in both: it is dropped before the limit is felt."""
    available = int(psutil.virtual_memory().available)
    limit, current = _read_int(cgroup / "memory.max"), _read_int(cgroup / "memory.current")
    if limit is not None and current is not None:
        available = min(available, max(0, limit - current + _page_cache(cgroup)))
    return available


def total_memory(cgroup: Path = _CGROUP) -> int:
    """Bytes of memory of the machine or, if that is less, of the container."""
    total = int(psutil.virtual_memory().total)
    limit = _read_int(cgroup / "memory.max")
    return total if limit is None else min(total, limit)


def _page_cache(cgroup: Path) -> int:
    """Bytes of files that the container is charged for; 0 where it does not say."""
    try:
        fields = [line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines()]
        return sum(int(field[1]) for field in fields if field[0] in ("active_file", "inactive_file"))
    except (OSError, ValueError, IndexError):
        return 0


def _read_int(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
