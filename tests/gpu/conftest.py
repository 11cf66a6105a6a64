"""Tests of this directory need a CUDA device; everywhere else they are skipped. scripts/gpu_check.sh runs them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
