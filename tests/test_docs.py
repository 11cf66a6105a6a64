"""README and docs stay true: their Python runs, their curl lines are answered, their commands and flags exist."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.messages import GenerateReqInput
from scripts.doc_tables import DOCS, TABLES, updated
from server.app import build_app
from server.args import ServerArgs
from server.cli import VERBS
from server.flags import FLAGS
from server.gateway import GatewayServer
from server.http_protocol import uvicorn_config
from tests.fakes import ScriptedEngine
from tests.source_tree import ROOT

DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{p.name}" for p in sorted(ROOT.glob("docs/*.md"))),
)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{document}:{text.count(chr(10), 0, match.start()) + 1}", match.group(2))
        for document in DOCUMENTS
        for text in [(ROOT / document).read_text("utf-8")]
        for match in BLOCK.finditer(text)
        if match.group(1) == language
    ]


def answer(request: GenerateReqInput, index: int) -> str:
    prompt = request.text or ""
    if "<|im_start|>tool" in prompt:
        return "It is 12 degrees and raining."
    return CALL if "get_weather" in prompt else "Hello!"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    """host:port of a gateway on a real socket, in front of a scripted engine."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        args = ServerArgs(served_model_names=("qwen2.5-coder-0.5b",))
        server = GatewayServer(uvicorn_config(build_app(ScriptedEngine(answer), args), args))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])))
        thread.start()
        yield f"127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        thread.join()


def run(command: list[str], text: str = "") -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, input=text, capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("place", "code"), blocks("python"))
def test_python_blocks_run(place: str, code: str, base: str, tmp_path: Path) -> None:
    script = tmp_path / "block.py"
    script.write_text(code.replace("127.0.0.1:8000", base), "utf-8")
    output = run([sys.executable, str(script)])
    if "print(" in code:
        assert output.strip(), place


@pytest.mark.parametrize(("place", "code"), [b for b in blocks("bash") if b[1].startswith("curl")])
def test_curl_blocks_are_answered(place: str, code: str, base: str) -> None:
    words = shlex.split(code.replace("127.0.0.1:8000", base))
    output = run(["curl", "--silent", "--show-error", "--fail-with-body", *words[1:]])
    if '"tools"' in code:
        assert '"finish_reason":"tool_calls"' in output.replace(" ", ""), place


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    for document in DOCUMENTS:
        named = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", (ROOT / document).read_text("utf-8"), re.MULTILINE))
        assert named <= targets, f"{document}: {named - targets}"


def test_commands_and_flags_that_are_named_exist() -> None:
    flags = {name for flag in FLAGS for name in flag.names} | {"--no-rescue", "--help"}
    for document in DOCUMENTS:
        text = (ROOT / document).read_text("utf-8")
        verbs = set(re.findall(r"`callgate ([a-z]+)", text))
        assert verbs <= set(VERBS), f"{document}: {verbs - set(VERBS)}"
        for line in re.findall(r"`((?:callgate serve|python -m server) [^`]*)`", text):
            named = set(re.findall(r"--[a-z-]+", line))
            assert named <= flags, f"{document}: {named - flags}"


@pytest.mark.parametrize("document", TABLES)
def test_tables_are_those_of_the_code(document: str) -> None:
    assert updated(document) == (DOCS / document).read_text("utf-8"), "run python -m scripts.doc_tables"


def test_endpoints_of_the_readme_exist() -> None:
    routes = set(build_app(ScriptedEngine(), ServerArgs()).openapi()["paths"])
    rows = [line for line in (ROOT / "README.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    named = {path for row in rows for path in re.findall(r"`(/[a-z_/0-9]+)`", row)}
    assert len(named) > 10
    assert named <= routes, named - routes


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        path = ROOT / document
        prose = re.sub(r"`[^`\n]+`", "", path.read_text("utf-8"))
        for target in re.findall(r"\]\(([^)#\s]+)\)", prose):
            if not target.startswith("http"):
                assert (path.parent / target).exists(), f"{document}: {target}"
