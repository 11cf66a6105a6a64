"""The interpreter takes what the compiler refuses: every kernel must also become machine code for an H100."""

from __future__ import annotations

import os
import subprocess
import sys


def test_every_kernel_compiles_for_hopper(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-W", "error", "-m", "tests.engine.kernels.triton.compile_all"]
    result = subprocess.run(command, env={**env, "TRITON_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    lines = result.stdout.splitlines()
    assert len(lines) == 19
    assert len({line.split()[0] for line in lines}) == 11
