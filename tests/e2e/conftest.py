"""Fixtures of the tests that start real processes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short directory for sockets: pytest's own may be too long for one."""
    path = Path(tempfile.mkdtemp(prefix="cg-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
