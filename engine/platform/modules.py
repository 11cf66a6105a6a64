"""How a module of this installation runs in a process of its own, whatever directory its user is in."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import engine


def module_command(module: str) -> tuple[str, ...]:
    """``python -m module`` that does not look in the working directory first: a folder of the user's that is called
    engine, or a file queue.py, would be imported in place of what is meant."""
    return (sys.executable, "-P", "-m", module)


def import_path() -> str:
    """PYTHONPATH of such a process: this installation before what the user has set."""
    root = str(Path(engine.__file__).resolve().parent.parent)
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
