"""Data and scale of the parser's tests.

CALLGATE_TEST_SCALE multiplies the number of fuzzed outputs and round trips (default 1, CI's share).
CALLGATE_BFCL_DIR is an unpacked bfcl-eval wheel (the folder that holds ``data``); without it the wheel is downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs
import pytest

BFCL = "bfcl-eval==2026.3.23"


def scaled(count: int) -> int:
    return max(1, int(count * float(os.environ.get("CALLGATE_TEST_SCALE", "1"))))


@pytest.fixture(scope="session")
def bfcl_data() -> Path:
    """The folder with BFCL's questions and ground truth."""
    given = os.environ.get("CALLGATE_BFCL_DIR")
    if given:
        found = next(
            (p for p in (Path(given), Path(given) / "data", Path(given) / "bfcl_eval/data") if _is_data(p)), None
        )
        assert found is not None, f"CALLGATE_BFCL_DIR={given} holds no possible_answer folder"
        return found
    home = Path(os.environ.get("CALLGATE_HOME") or platformdirs.user_cache_dir("callgate"))
    folder = home / "bfcl"
    data = folder / "bfcl_eval/data"
    if not _is_data(data):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _download(folder)
        except (OSError, subprocess.SubprocessError, StopIteration) as error:
            pytest.skip(f"no BFCL data: CALLGATE_BFCL_DIR is not set and pip cannot download {BFCL} ({error})")
    return data


def _is_data(path: Path) -> bool:
    return (path / "possible_answer").is_dir()


def _download(folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", BFCL]
    subprocess.run([*command, "--dest", str(folder)], check=True, capture_output=True, timeout=100)
    with zipfile.ZipFile(next(folder.glob("bfcl_eval*.whl"))) as wheel:
        wheel.extractall(
            folder, [n for n in wheel.namelist() if n.startswith("bfcl_eval/data/BFCL") or "possible_answer/" in n]
        )
