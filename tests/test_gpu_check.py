"""What a person runs on a GPU machine, as far as it can be run without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.source_tree import ROOT

SCRIPT = ROOT / "scripts" / "gpu_check.sh"


def run(*arguments: str, tmp_path) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path / "out")}
    return subprocess.run([str(SCRIPT), *arguments], env=env, capture_output=True, text=True, timeout=100)


def test_a_dry_run_says_what_would_run_and_starts_nothing(tmp_path):
    result = run("--dry-run", tmp_path=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "out").exists()
    steps = [line for line in result.stdout.splitlines() if line.startswith("== ")]
    limits = [int(line.split("at most ")[1].split()[0]) for line in steps]
    assert sum(limits) < 8 * 60
    assert f"In all at most {sum(limits)} s" in result.stdout
    for line in steps:
        command = line.split("): ")[1].split()
        assert command[0] == sys.executable
        assert find_spec(command[2]) is not None
        assert all((ROOT / word).exists() for word in command if word.startswith("tests/"))


def test_without_a_gpu_it_ends_at_once_and_says_why(tmp_path):
    if any((ROOT / "/dev").glob("nvidia[0-9]*")):
        pytest.skip("a GPU is here")
    result = run(tmp_path=tmp_path)
    assert result.returncode == 2
    assert "torch (a CUDA build" in result.stdout or "No GPU here" in result.stdout
    assert not (tmp_path / "out").exists()


def test_missing_wheels_are_named_all_at_once(monkeypatch, capsys):
    from tests.gpu import wheels

    monkeypatch.setattr(wheels, "installed", lambda name: None if name in ("triton", "gguf") else "1.0")
    with pytest.raises(SystemExit):
        wheels.main()
    assert "missing: triton, gguf" in capsys.readouterr().out


def test_the_figures_of_a_tiny_model_on_a_cpu(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--model", "tiny"]
    path = tmp_path / "figures.json"
    result = subprocess.run([*command, "--json", str(path)], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    figures = json.loads(path.read_text())
    assert set(figures) == {"roofline", "decode", "prefill", "overlap", "kernels", "serving"}
    assert figures["serving"]["serving output tokens/s"] > 0
    assert 0 < figures["decode"]["decode x1 % of copy bandwidth"] < 200
