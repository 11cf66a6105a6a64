"""Every example runs to its end against a gateway whose model is scripted, and prints what it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.messages import GenerateReqInput
from server.app import build_app
from server.args import ServerArgs
from tests.clients.environments import ENVIRONMENTS, INSTALL_SECONDS, Unavailable, ensure
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.source_tree import ROOT

EXAMPLES = ROOT / "examples"
CITIES = ("Oslo", "Rome")
COUNTRY = {"name": "Norway", "capital": "Oslo", "languages": ["Norwegian"]}
REPORT = {"summary": "Rain.", "wet_cities": ["Oslo", "Rome"]}
_LOOK = 'I look up\n"the weather" \\ …'
"""Text before calls that must survive the way into the client and back into the history."""
LOOP = ["get_weather", "Oslo", "Rome", "It rains everywhere."]

PRINTED = {
    "curl_tools.sh": ["get_weather", "Oslo", "It rains everywhere."],
    "openai_tool_loop.py": LOOP,
    "openai_tool_loop_stream.py": LOOP,
    "parallel_calls.py": LOOP,
    "legacy_functions.py": ["function_call get_weather", "Oslo", "It rains everywhere."],
    "structured_output.py": ["Country(name='Norway', capital='Oslo', languages=['Norwegian'])"],
    "forced_call.py": ["rate {'mood': 'good', 'score': 9}"],
    "openai_responses.py": ["get_weather: Oslo", "It rains everywhere."],
    "anthropic_messages.py": LOOP,
    "native_generate.py": ["The capital of Norway is Oslo. stop", "One, two, three, four, five"],
    "agent_openai_agents.py": LOOP,
    "agent_langgraph.py": LOOP,
    "agent_pydantic_ai.py": ["get_weather: Oslo", "get_weather: Rome", "Report(summary='Rain.'"],
}


def call(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def answer(request: GenerateReqInput, index: int) -> Reply:
    return Reply(_text((request.text or "").replace(request.guard or "\0", ""), request.grammar is not None), chunk=5)


def _text(prompt: str, constrained: bool) -> str:
    if "<|im_start|>" not in prompt:
        return " Oslo." if constrained else " four, five"
    if "Norway" in prompt:
        return json.dumps(COUNTRY) if constrained else "Norway is cold."
    if "I love this film" in prompt:
        return call("rate", {"mood": "good", "score": 9})
    todo = [city for city in CITIES if city in prompt and not re.search(rf'"city": ?"{city}"', prompt)]
    if todo:
        calls = "\n".join(call("get_weather", {"city": city}) for city in todo)
        return f"{_LOOK}\n\n{calls}"
    if "rain" not in prompt.split("<tool_call>")[-1] or _LOOK not in prompt:
        return "There is no result."
    return call("final_result", REPORT) if '"final_result"' in prompt else "It rains everywhere."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    args = ServerArgs(served_model_names=("qwen2.5-coder-0.5b",))
    with live(build_app(ScriptedEngine(answer), args), args) as base:
        yield base


def command(name: str) -> list[str]:
    path = EXAMPLES / name
    if path.suffix == ".sh":
        return ["sh", str(path)]
    if not name.startswith("agent_"):
        return [sys.executable, str(path)]
    try:
        ensure(ENVIRONMENTS["python"])
    except Unavailable as exc:
        pytest.skip(f"agent frameworks: {exc}")
    return [str(ENVIRONMENTS["python"].interpreter), str(path)]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.clients, pytest.mark.timeout(INSTALL_SECONDS)] if name.startswith("agent_") else [],
        )
        for name in PRINTED
    ],
)
def test_example(name: str, url: str, tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "CALLGATE_URL": url, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        command(name), cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in PRINTED[name]:
        assert text in done.stdout, done.stdout + done.stderr


def test_every_example_is_tested_and_listed() -> None:
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    assert files == set(PRINTED)
    listed = re.findall(r"^\| \[([^\]]+)\]\(([^)]+)\)", (EXAMPLES / "README.md").read_text("utf-8"), re.MULTILINE)
    assert {name for name, _ in listed} == {target for _, target in listed} == files
