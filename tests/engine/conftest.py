"""Idle OpenMP threads sleep in tests too: several test processes share the cores. Without a GPU, Triton kernels run
in Triton's interpreter, which must be said before the first of them is imported."""

import os
from pathlib import Path

from engine.platform.host import calm_openmp

calm_openmp()
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
