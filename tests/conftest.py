"""What must be said before torch or Triton is first imported, whichever test runs first."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.platform.host import calm_openmp

calm_openmp()
"""Idle OpenMP threads sleep: several test processes share the cores."""
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    """Without a GPU, Triton kernels run in Triton's interpreter."""


@pytest.fixture
def hangups_are_heard() -> Iterator[None]:
    """Under nohup the tests' own processes would ignore SIGHUP, as a server started there shall."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
