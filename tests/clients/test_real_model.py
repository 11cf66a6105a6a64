"""Every client against the whole server with a real 0.5B model, made to call tools where the client can ask for it.

What a small model says is chance, so a scenario passes if the client ran at least one declared tool, with arguments
of the declared types, and ended without an error. CI runs the first client; CALLGATE_TEST_SCALE=12 runs all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.catalogue import CLIENTS
from tests.clients.environments import Unavailable
from tests.clients.running import run_client
from tests.engine.real_model import real_model_path
from tests.engine.scale import scaled

MODEL = "qwen2.5-coder-0.5b"
START_SECONDS = 240
RUN_SECONDS = 1800

pytestmark = [pytest.mark.clients, pytest.mark.real_model, pytest.mark.timeout(START_SECONDS + RUN_SECONDS)]


@pytest.fixture(scope="module")
def real_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """CALLGATE_TEST_URL, or a server of our own with the real weights."""
    if url := os.environ.get("CALLGATE_TEST_URL"):
        yield url
        return
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ["--model-path", str(real_model_path()), "--served-model-name", MODEL, "--port", "0"]
    with log.open("wb") as out:
        env = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen([sys.executable, "-m", "server", *arguments], stdout=out, stderr=out, env=env)
    try:
        yield _wait_ready(process, log)
    finally:
        process.terminate()
        process.wait(60)


def _wait_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + START_SECONDS
    while "Callgate is ready at " not in (text := log.read_text("utf-8")) or "\n  curl " not in text:
        assert process.poll() is None, text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)
    return text.split("Callgate is ready at ")[1].split("/v1")[0]


@pytest.mark.parametrize("client", CLIENTS[: scaled(1)], ids=lambda client: client.script)
def test_client_with_a_real_model(client, real_url: str, tmp_path: Path) -> None:
    try:
        run = run_client(
            client, real_url, tmp_path, client.real, seconds=RUN_SECONDS, MODEL=MODEL, LENIENT="1", TIMEOUT="600"
        )
    except Unavailable as exc:
        pytest.skip(f"{client.environment_name} clients: {exc}")
    print("\n".join(f"{client.name} {r.scenario}: {'ok' if r.ok else r.why}" for r in run.reports.values()))
    assert set(run.reports) == set(client.real), run.log[-4000:]
    assert all(report.ok for report in run.reports.values()), run.log[-4000:]
