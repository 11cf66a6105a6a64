"""scripts/two_nodes.py where it can run: two nodes in two network namespaces, and a rank killed under a stream."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.source_tree import ROOT

pytestmark = pytest.mark.e2e


def may_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"callgate-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False).returncode == 0


def test_two_network_namespaces():
    if not may_make_namespaces():
        pytest.skip("network namespaces need root and ip")
    command = [sys.executable, str(ROOT / "scripts" / "two_nodes.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stdout + result.stderr[-3000:]
    print(result.stdout)
    assert result.stdout.count("6 of 6") == 2
    told, ready = re.findall(r"told after ([0-9.]+) s, ready again after ([0-9.]+) s", result.stdout)[0]
    assert 0 < float(told) <= float(ready)
