"""``callgate models``: what is known, what is cached."""

from __future__ import annotations

import argparse

from engine.model_store import CATALOG, DEFAULT_MODEL, cached_path, models_dir


def run(arguments: argparse.Namespace) -> int:
    print(f"{'NAME':22}{'SIZE':>9}  {'CACHED':8}DESCRIPTION")
    for entry in CATALOG:
        cached = "yes" if cached_path(entry) else "no"
        default = " (default)" if entry.name == DEFAULT_MODEL else ""
        print(f"{entry.name:22}{entry.size / 1e6:>6.0f} MB  {cached:8}{entry.description}{default}")
    known = {entry.filename for entry in CATALOG}
    others = sorted(path for path in models_dir().glob("*.gguf") if path.name not in known)
    for path in others:
        print(f"{path.name:22}{path.stat().st_size / 1e6:>6.0f} MB  yes     {path}")
    print(f"\nCache: {models_dir()} (CALLGATE_HOME overrides). Any .gguf file or directory can be served by its path.")
    return 0
