"""The CPU kernels' tests under AddressSanitizer and UndefinedBehaviorSanitizer (Linux, g++).

    python -m scripts.sanitize_kernels [--keep DIR] [pytest arguments]

Builds the kernels with sanitizers into a cache directory of their own (a minute or two) and runs tests of them, or
what the arguments name, there. Ends with 1 where a test fails or a sanitizer has found something, and prints it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.kernels.cpu.build import cache_dir, flags_of, library_name, sources

# Behind the build's own flags, so that -O1 counts: at -O3 some files take longer to instrument than all else.
FLAGS = ("-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")
TESTS = ("tests/engine/kernels/cpu", "tests/engine/executor/test_native_logits.py")


def build(directory: Path) -> None:
    """The library where the loader looks for it in $CALLGATE_HOME."""

    def compile_one(source: Path) -> str:
        target = directory / f"{source.stem}.o"
        subprocess.run(["g++", *flags_of(source), *FLAGS, "-c", str(source), "-o", str(target)], check=True)
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, sources()))
    cache_dir().mkdir(parents=True, exist_ok=True)
    command = ["g++", "-shared", "-pthread", *FLAGS, *objects, "-o", str(cache_dir() / library_name())]
    subprocess.run(command, check=True)


def runtime(name: str) -> str:
    found = subprocess.run(["g++", f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description="Run tests of the CPU kernels under sanitizers.")
    parser.add_argument("--keep", type=Path, help="cache directory to build into and to keep")
    arguments, tests = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        home = arguments.keep or Path(temporary)
        os.environ["CALLGATE_HOME"] = str(home)
        if not (cache_dir() / library_name()).exists():
            build(Path(temporary))
        logs = Path(temporary, "report")
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(map(runtime, ("libasan.so", "libubsan.so"))),
            "ASAN_OPTIONS": f"detect_leaks=0:log_path={logs}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={logs}",
        }
        ended = subprocess.run([sys.executable, "-m", "pytest", *(tests or TESTS)], env=environment, check=False)
        reports = sorted(Path(temporary).glob("report.*"))
        for report in reports:
            print(report.read_text("utf-8", "replace"), file=sys.stderr)
    return 1 if ended.returncode or reports else 0


if __name__ == "__main__":
    sys.exit(main())
