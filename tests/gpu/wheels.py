"""What is installed of what the GPU checks need: ``python -m tests.gpu.wheels``. Imports nothing but metadata.

Prints every missing wheel by name, all of them at once, and ends with status 1 if a required one is missing.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

REQUIRED = ("torch", "triton", "numpy", "msgspec", "pyzmq", "gguf", "safetensors", "tokenizers", "transformers",
            "llguidance", "psutil", "platformdirs", "pytest", "pytest-asyncio", "pytest-timeout", "httpx")  # fmt: skip
OPTIONAL = {"flash-attn": "the flash backend with pages of 256", "vllm-flash-attn": "the flash backend with any page"}


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def main() -> None:
    found = {name: installed(name) for name in (*REQUIRED, *OPTIONAL)}
    print("found:  ", " ".join(f"{name}=={number}" for name, number in found.items() if number))
    missing = [name for name in REQUIRED if found[name] is None]
    for name, use in OPTIONAL.items():
        if found[name] is None:
            print(f"optional: {name} is not here: {use} is left out")
    if (found["torch"] or "").endswith("+cpu"):
        missing.append("torch (a CUDA build; this one is for CPUs only)")
    if missing:
        print("missing:", ", ".join(missing))
        sys.exit(1)


if __name__ == "__main__":
    main()
