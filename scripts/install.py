"""Installs Callgate into the virtual environment whose Python runs this: ``.venv/bin/python scripts/install.py``.

Versions come from requirements.lock. On Linux without an NVIDIA device the CPU build of torch is taken from
PyTorch's own index if that answers, because the default build brings gigabytes of CUDA libraries; otherwise pip
decides. Where there is no C++ compiler, the ziglang wheel serves as one for the CPU kernels. Uses the standard
library only.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
COMPILERS = (os.environ.get("CXX", ""), "g++", "clang++", "c++")


def ensure_pip() -> None:
    """An environment whose making was interrupted has a Python, but no pip or half of one."""
    if not quietly("pip", "--version") and not (quietly("ensurepip", "--default-pip") and quietly("pip", "--version")):
        sys.exit(f"install: {sys.prefix} has no working pip: remove it (make clean) and try again")


def quietly(*module: str) -> bool:
    command = [sys.executable, "-m", *module]
    return subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def pip(*arguments: str, check: bool = True) -> int:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    status = subprocess.run(command, check=False).returncode
    if status and check:
        sys.exit(f"install: pip failed ({status}): {' '.join(arguments)}")
    return status


def locked(name: str) -> str:
    """``name==version`` as the lock file has it."""
    found = re.search(rf"^{re.escape(name)}==\S+", LOCK.read_text("utf-8"), re.MULTILINE)
    if found is None:
        sys.exit(f"install: {name} is not in {LOCK.name}")
    return found.group()


def wants_cpu_torch() -> bool:
    return platform.system() == "Linux" and not any(Path("/dev").glob("nvidia[0-9]*"))


def answers(url: str, seconds: float = 3.0) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/torch/", timeout=seconds) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def install_torch() -> None:
    """The CPU build first, so that the main installation finds torch satisfied. A failure here is no failure."""
    if wants_cpu_torch() and answers(TORCH_CPU_INDEX):
        pip("install", "-qq", "--no-deps", "--index-url", TORCH_CPU_INDEX, locked("torch"), check=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", default="", help="comma-separated extras, for example dev,hub")
    extras = [name for name in parser.parse_args().extras.split(",") if name]
    if sys.prefix == sys.base_prefix:
        sys.exit("install: run this with the Python of a virtual environment")
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        here = ".".join(map(str, sys.version_info[:2]))
        sys.exit(
            f"install: {sys.prefix} has Python {here}; 3.11 to 3.13 serve: make clean, then make PYTHON=python3.12 ..."
        )
    ensure_pip()
    if not any(shutil.which(name.split()[0]) for name in COMPILERS if name):
        extras.append("zig")
    install_torch()
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip("install", "-qq", "--constraint", str(LOCK), "--editable", target)
    return 0


if __name__ == "__main__":
    sys.exit(main())
