"""What must be said before torch or Triton is first imported, whichever test runs first."""

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.platform.host import calm_openmp

calm_openmp()
"""Idle OpenMP threads sleep: several test processes share the cores."""
if not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ.setdefault("TRITON_INTERPRET", "1")
    """Without a GPU, Triton kernels run in Triton's interpreter."""


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where CALLGATE_TEST_SCALE asks for more of the same, a test may take so much longer."""
    scale = float(os.environ.get("CALLGATE_TEST_SCALE", "1"))
    if scale > 1 and config.getoption("timeout", None) is None:
        config.option.timeout = float(config.getini("timeout")) * scale


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that share the work (JOBS) must find the same names; an object's address is another one in each."""
    if unstable := [item.nodeid for item in items if " at 0x" in item.nodeid]:
        raise pytest.UsageError(f"tests named after an object's address: {', '.join(unstable[:5])}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not walk through it again."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard() -> Iterator[None]:
    """Under nohup, or behind an & in a script, the tests' own processes would ignore these, as a server started there
    shall."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL), signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in zip((signal.SIGHUP, signal.SIGINT), before):
        signal.signal(number, handler)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A short directory for sockets: pytest's own may be too long for one."""
    path = Path(tempfile.mkdtemp(prefix="cg-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)
