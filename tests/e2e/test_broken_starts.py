"""Starts that cannot succeed: status other than 0, one line of reason, no traceback, nothing left."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e


def _write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def _directory(path: Path, config: str, weights: bytes | None) -> str:
    _write(path / "config.json", config.encode())
    if weights is not None:
        _write(path / "model.safetensors", weights)
    return str(path)


QWEN = '{"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 8, "hidden_size": 8}'

CASES: dict[str, Callable[[Path], list[str]]] = {
    "no such path": lambda tmp: ["--model", str(tmp / "missing.gguf")],
    "unknown alias": lambda tmp: ["--model", "nonsense"],
    "empty directory": lambda tmp: ["--model", str(tmp)],
    "a text file": lambda tmp: ["--model", _write(tmp / "a.txt", b"hello")],
    "not a gguf": lambda tmp: ["--model", _write(tmp / "a.gguf", b"hello")],
    "empty gguf": lambda tmp: ["--model", _write(tmp / "a.gguf", b"")],
    "only the magic": lambda tmp: ["--model", _write(tmp / "a.gguf", b"GGUF")],
    "gguf of version 99": lambda tmp: ["--model", _write(tmp / "a.gguf", b"GGUF" + struct.pack("<IQQ", 99, 0, 0))],
    "gguf with absurd counts": lambda tmp: [
        "--model",
        _write(tmp / "a.gguf", b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60)),
    ],
    "gguf without anything": lambda tmp: ["--model", _write(tmp / "a.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))],
    "config without weights": lambda tmp: ["--model", _directory(tmp / "m", QWEN, None)],
    "config that is no JSON": lambda tmp: ["--model", _directory(tmp / "m", "{", b"\0" * 16)],
    "unknown architecture": lambda tmp: ["--model", _directory(tmp / "m", '{"architectures": ["X"]}', b"\0" * 16)],
    "empty safetensors": lambda tmp: ["--model", _directory(tmp / "m", QWEN, b"")],
    "corrupt safetensors": lambda tmp: ["--model", _directory(tmp / "m", QWEN, os.urandom(4096))],
    "safetensors header too long": lambda tmp: ["--model", _directory(tmp / "m", QWEN, b"\xff" * 64)],
    "unknown flag": lambda tmp: ["--model", "hash-lm", "--no-such-flag"],
    "bad number": lambda tmp: ["--model", "hash-lm", "--page-size", "many"],
    "bad choice": lambda tmp: ["--model", "hash-lm", "--device", "abacus"],
    "negative context": lambda tmp: ["--model", "hash-lm", "--max-model-len", "-5"],
    "missing template": lambda tmp: ["--model", "hash-lm", "--chat-template", str(tmp / "missing.jinja")],
    "broken template": lambda tmp: ["--model", "hash-lm", "--chat-template", _write(tmp / "t.jinja", b"{% for %}")],
    "template that is not text": lambda tmp: [
        "--model",
        "hash-lm",
        "--chat-template",
        _write(tmp / "t.jinja", b"\xff\xfe"),
    ],
    "unknown tool parser": lambda tmp: ["--model", "hash-lm", "--tool-call-parser", "nonsense"],
    "unknown reasoning parser": lambda tmp: ["--model", "hash-lm", "--reasoning-parser", "nonsense"],
    "missing key file": lambda tmp: ["--model", "hash-lm", "--api-key-file", str(tmp / "missing")],
    "key no header can carry": lambda tmp: ["--model", "hash-lm", "--api-key", "clé"],
    "run dir that is a file": lambda tmp: ["--model", "hash-lm", "--run-dir", _write(tmp / "f", b"")],
    "host that does not resolve": lambda tmp: ["--model", "hash-lm", "--host", "no.such.host.invalid"],
    "cuda without a GPU": lambda tmp: ["--model", "hash-lm", "--device", "cuda", "--tp", "0"],
}


def start(arguments: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", "--port", "0", *arguments]
    env = {**os.environ, "CALLGATE_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60, check=False)


@pytest.mark.parametrize("name", CASES)
def test_a_broken_start_is_one_line(name: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = start(CASES[name](work), tmp_path / "home")
    lines = done.stderr.strip().splitlines()
    assert done.returncode in (1, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert lines, "silence explains nothing"
    assert lines[-1].startswith("callgate")
    assert len(lines[-1]) < 500
    assert "ready at" not in done.stdout
    assert not left_behind(tmp_path / "home")


def test_a_busy_port_is_found_before_the_model_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = start(["--port", str(taken.getsockname()[1]), "--model", str(tmp_path / "missing.gguf")], tmp_path)
    assert done.returncode == 1
    assert "cannot listen on 127.0.0.1" in done.stderr


def left_behind(home: Path) -> list[str]:
    """Command lines of processes that a start with this CALLGATE_HOME left, orphans of any parent included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("CALLGATE_HOME") == str(home):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
