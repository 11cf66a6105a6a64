"""``callgate serve`` as a person runs it: banner, an answer, and nothing left after a signal."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

pytestmark = pytest.mark.e2e


class Server:
    """A server process; ``url`` from its banner."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        command = [sys.executable, "-m", "server", "--model-path", "hash-lm", "--port", "0", *arguments]
        self._log = log
        with log.open("wb") as out:
            env = {**os.environ, "PYTHONUNBUFFERED": "1"}
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env)

    @property
    def output(self) -> str:
        return self._log.read_text("utf-8")

    def wait_ready(self) -> str:
        deadline = time.monotonic() + 60
        while "Callgate is ready at " not in self.output or "\n  curl " not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)
        return self.output.split("Callgate is ready at ")[1].split("/v1")[0]


@pytest.fixture
def start(tmp_path: Path) -> Iterator:
    started: list[Server] = []

    def make(*arguments: str) -> Server:
        started.append(Server(list(arguments), tmp_path / f"server-{len(started)}.log"))
        return started[-1]

    yield make
    for server in started:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_answer_and_end(start, number: signal.Signals, run_dir: Path) -> None:
    server = start("--mem-fraction-static", "0.8", "--tp", "1", "--served-model-name", "m", "--run-dir", str(run_dir))
    url = server.wait_ready()
    children = psutil.Process(server.process.pid).children(recursive=True)
    assert len(children) >= 2, "a model process and a text process"
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 4
    server.process.send_signal(number)
    assert server.process.wait(20) == 0, server.output
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    assert not list(run_dir.rglob("*.sock"))
    assert "Traceback" not in server.output


def test_the_banner_says_what_is_needed(start) -> None:
    server = start("--api-key", "secret-key-1")
    url = server.wait_ready()
    text = server.output
    assert "hash-lm" in text
    assert "KV cache     131,072 tokens" in text
    assert "tool calls: hermes" in text
    assert "secret-key-1" not in text
    curl = next(line for line in text.splitlines() if line.startswith("  curl"))
    assert json.loads(curl.split(" -d '")[1].rstrip("'"))["tools"]
    assert httpx.get(f"{url}/v1/models").status_code == 401
    assert httpx.get(f"{url}/v1/models", headers={"authorization": "Bearer secret-key-1"}).status_code == 200


def test_a_second_server_on_the_same_port_ends_at_once(start) -> None:
    url = start().wait_ready()
    second = start("--port", url.rsplit(":", 1)[1])
    assert second.process.wait(20) == 1
    assert "cannot listen on" in second.output
    assert httpx.get(f"{url}/health/ready").status_code == 200


def test_output_that_nobody_takes_costs_no_request(run_dir: Path) -> None:
    """Standard output is a pipe without a reader, standard error one that is full and never read."""
    gone, out = os.pipe()
    os.close(gone)
    unread, err = os.pipe()
    os.set_blocking(err, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(err, b"." * 4096):
            pass
    os.set_blocking(err, True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "server",
        "--model-path",
        "hash-lm",
        "--port",
        str(port),
        "--run-dir",
        str(run_dir),
    ]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
    try:
        _until_ready(process, f"http://127.0.0.1:{port}")
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            assert client.get("/health/ready").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        for fd in (out, err, unread):
            os.close(fd)


def _until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        assert process.poll() is None, process.returncode
        assert time.monotonic() < deadline
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health/ready", timeout=5).status_code == 200:
                return
        time.sleep(0.05)
