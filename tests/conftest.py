"""What must be said before torch or Triton is first imported, whichever test runs first."""

import os
from pathlib import Path

from engine.platform.host import calm_openmp

calm_openmp()
"""Idle OpenMP threads sleep: several test processes share the cores."""
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    """Without a GPU, Triton kernels run in Triton's interpreter."""
