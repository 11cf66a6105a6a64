"""Servers are found by their variables, waited for, and ended with everything that they started."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from benchmarks.peers import Server, ServerFailed, installed, ours, started

STUBBORN = """
import signal, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if time.monotonic() < ready else 200)
        self.end_headers()
        self.wfile.write(str(child.pid).encode())
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "length"}]}\\n\\n')

ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", ignore])
ready = time.monotonic() + 0.2
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_a_server_is_ready_when_it_says_so_and_leaves_nothing_behind() -> None:
    with started(Server("stub", (sys.executable, "-c", STUBBORN, "{port}"))) as running:
        members = psutil.Process(running.process.pid).children(recursive=True)
        assert members
        assert running.ready_s >= 0.2
        assert running.answered_s >= running.ready_s
        assert running.loaded_mb > 0
    assert not [member for member in members if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]


def test_a_server_that_ends_is_reported_with_its_log() -> None:
    code = "import sys; sys.exit('no such model')"
    with pytest.raises(ServerFailed, match="no such model"), started(Server("stub", (sys.executable, "-c", code))):
        pass


def test_a_server_that_never_gets_ready_is_given_up() -> None:
    code = "import time; time.sleep(600)"
    server = Server("stub", (sys.executable, "-c", code))
    with pytest.raises(ServerFailed, match="not ready"), started(server, timeout=0.2):
        pass


def test_peers_are_those_whose_variables_and_forms_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = Path("m.gguf")
    for name in ("LLAMACPP", "VLLM", "OPENVINO", "TRANSFORMERS", "MODELS"):
        monkeypatch.delenv(f"CALLGATE_PEER_{name}", raising=False)
    assert installed(model, 2) == []
    for name in ("LLAMACPP", "VLLM", "OPENVINO", "TRANSFORMERS"):
        monkeypatch.setenv(f"CALLGATE_PEER_{name}", f"/opt/{name.lower()}")
    assert [server.name for server in installed(model, 2)] == ["llama.cpp"]
    monkeypatch.setenv("CALLGATE_PEER_MODELS", str(tmp_path))
    for form, file in (("bf16", "config.json"), ("w8a8", "config.json"), ("openvino", "openvino_model.xml")):
        (tmp_path / form).mkdir()
        (tmp_path / form / file).touch()
    names = [server.name for server in installed(model, 2)]
    assert names == ["llama.cpp", "openvino", "vllm-w8a8", "vllm-bf16", "transformers"]
    assert all("{port}" in server.command for server in installed(model, 2))


@pytest.mark.e2e
def test_our_own_server_starts_as_a_user_starts_it() -> None:
    with started(ours(Path("hash-lm"), 1)) as running:
        members = psutil.Process(running.process.pid).children(recursive=True)
    assert not [member for member in members if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
