"""Compiles the CPU kernels to one shared library: ``python -m engine.kernels.cpu.build [--force]``.

Every source file gets the flags of the instruction set in its name; which of them runs is decided at run time, so one
library serves every machine of an architecture. The artefact's name carries a hash of sources and flags.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import platformdirs

logger = logging.getLogger(__name__)

SOURCE_DIR: Final = Path(__file__).resolve().parent
COMPILE_SECONDS: Final = 300

_COMMON: Final = (
    *("-O3", "-std=c++17", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-pthread"),
    *("-Wall", "-Wno-psabi", "-Wno-uninitialized", "-Wno-unknown-warning-option", "-Wno-unknown-pragmas"),
)
_AVX2: Final = ("-mavx2", "-mfma", "-mf16c")
_AVX512: Final = (
    *_AVX2,
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16"),
    "-mprefer-vector-width=512",
)
_BY_SUFFIX: Final = {"_avx512": _AVX512, "_avx2": _AVX2}
_X86: Final = frozenset({"x86_64", "AMD64"})


class BuildUnavailable(RuntimeError):
    """The native kernels cannot be built here; the message says why and what would help."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that compiles C++, what to call it, and the flags that only it needs."""

    name: str
    command: tuple[str, ...]
    flags: tuple[str, ...] = ()


def sources() -> list[Path]:
    """The C++ files, in a fixed order."""
    return sorted(SOURCE_DIR.glob("*.cpp"))


def flags_of(source: Path) -> tuple[str, ...]:
    """Compile flags of one file: ``*_avx512.cpp`` and ``*_avx2.cpp`` get theirs on x86-64, everything else none."""
    if platform.machine() not in _X86:
        return _COMMON
    return (*_COMMON, *next((flags for suffix, flags in _BY_SUFFIX.items() if source.stem.endswith(suffix)), ()))


def source_hash() -> str:
    """Changes with any source, header or flag; the same for every compiler."""
    digest = hashlib.sha256()
    for path in sorted([*sources(), *SOURCE_DIR.glob("*.h")]):
        digest.update(f"{path.name}\0{' '.join(flags_of(path))}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:20]


def library_name() -> str:
    return f"callgate_cpu-{platform.system().lower()}-{platform.machine()}-{source_hash()}.so"


def cache_dir() -> Path:
    """Where this user's builds go: ``kernels`` in CALLGATE_HOME or the user's cache directory."""
    override = os.environ.get("CALLGATE_HOME")
    return (Path(override).expanduser() if override else platformdirs.user_cache_path("callgate")) / "kernels"


def find_library() -> Path | None:
    """A library built from exactly these sources: beside them (built at install) or in the cache."""
    name = library_name()
    return next((p for p in (SOURCE_DIR / "_built" / name, cache_dir() / name) if p.is_file()), None)


def compilers() -> list[Compiler]:
    """What can compile here, best first: $CXX, g++, clang++, c++, then the ziglang wheel."""
    found: list[Compiler] = []
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "c++")):
        command = name.split()
        path = shutil.which(command[0])
        if path and all(c.command[0] != path for c in found):
            found.append(Compiler(name, (path, *command[1:])))
    if importlib.util.find_spec("ziglang") is not None:
        found.append(Compiler("zig c++", (sys.executable, "-P", "-m", "ziglang", "c++"), _zig_flags()))
    return found


def _zig_flags() -> tuple[str, ...]:
    # Without a target zig compiles for this very CPU, which would put its instructions into the portable files.
    machine = "x86_64" if platform.machine() in _X86 else platform.machine()
    libc = "gnu" if platform.libc_ver()[0] == "glibc" else "musl"
    return ("-target", f"{machine}-linux-{libc}", "-fno-sanitize=undefined")


def build(*, force: bool = False, target: Path | None = None) -> Path:
    """The library's path, compiled if it is not there. Safe beside other builders.

    force: compile even if the artefact exists. target: directory to put it in instead of the cache.
    Raises BuildUnavailable where no compiler is found or all fail.
    """
    ready = None if force or target else find_library()
    if ready:
        return ready
    directory = target or cache_dir()
    artefact = directory / library_name()
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(directory / "build.lock"):
            if artefact.is_file() and not force:
                return artefact
            _compile(artefact)
    except OSError as error:
        raise BuildUnavailable(f"the native kernels cannot be built in {directory}: {error}") from error
    return artefact


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _compile(artefact: Path) -> None:
    candidates = compilers()
    if not candidates:
        raise BuildUnavailable("no C++ compiler found: install g++ or clang++, or `pip install ziglang`")
    failures: list[str] = []
    # A warning, so that it reaches the terminal without any logging set up too: nothing else is said meanwhile.
    logger.warning("Building the CPU kernels with %s, once, about a minute ...", candidates[0].name)
    for compiler in candidates:
        with tempfile.TemporaryDirectory(dir=artefact.parent, prefix="build-") as temporary:
            try:
                _compile_with(compiler, Path(temporary), artefact)
                return
            except (subprocess.SubprocessError, OSError) as error:
                failures.append(f"{compiler.name}: {_reason(error)}")
    raise BuildUnavailable("the native kernels did not compile. " + "; ".join(failures))


def _compile_with(compiler: Compiler, directory: Path, artefact: Path) -> None:
    env = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(directory / "zig"), "ZIG_LOCAL_CACHE_DIR": str(directory / "zig")}

    def run(*arguments: str) -> None:
        command = [*compiler.command, *compiler.flags, *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS, env=env)

    def compile_one(source: Path) -> str:
        target = directory / f"{source.stem}.o"
        run(*flags_of(source), "-c", str(source), "-o", str(target))
        return str(target)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources()))
    library = directory / artefact.name
    run("-shared", "-pthread", *objects, "-o", str(library))
    library.replace(artefact)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in (error.stderr or "").splitlines() if "error" in line]
        return lines[0].strip() if lines else f"exit status {error.returncode}"
    return str(error)


def describe() -> str:
    """One line for ``callgate doctor``: the library that is used, or why there is none. Compiles nothing."""
    ready = find_library()
    if ready:
        return f"native CPU kernels: built ({ready})"
    found = compilers()
    if found:
        return f"native CPU kernels: not built yet; {found[0].name} will compile them at the first start"
    return "native CPU kernels: none, no C++ compiler found (install g++ or clang++, or `pip install ziglang`)"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.kernels.cpu.build", description="Build the CPU kernels.")
    parser.add_argument("--force", action="store_true", help="compile even if the library is there")
    parser.add_argument("--target", type=Path, help="directory to put it in instead of the user's cache")
    arguments = parser.parse_args()
    try:
        print(f"CPU kernels: {build(force=arguments.force, target=arguments.target)}")
    except BuildUnavailable as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
