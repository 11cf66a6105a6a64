"""The case runner says what failed and why, and survives any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases.__main__ import main
from tests.cases.compare import same_content, same_json

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "integer"}}}}}]
GOOD = {
    "id": "good",
    "kind": "parse",
    "format": "hermes",
    "tools": TOOLS,
    "input": '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
    "expected": {"content": None, "tool_calls": [{"name": "f", "arguments": {"a": 1}}], "finish_reason": "tool_calls"},
    "tier": "must",
}


def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], *lines: Any) -> tuple[int, str]:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    status = main([str(file)])
    return status, capsys.readouterr().out


def test_a_good_case_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out = run(tmp_path, capsys, GOOD)
    assert (status, out.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 not run")


@pytest.mark.parametrize(
    "change",
    [
        {"tool_calls": [{"name": "f", "arguments": {"a": True}}]},
        {"tool_calls": [{"name": "g", "arguments": {"a": 1}}]},
        {"tool_calls": []},
        {"content": "text"},
        {"finish_reason": "stop"},
        {"reasoning_content": "thought"},
    ],
)
def test_what_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any]) -> None:
    status, out = run(tmp_path, capsys, {**GOOD, "expected": {**GOOD["expected"], **change}})
    assert status == 1
    assert "FAILED good" in out
    assert "instead of" in out
    assert out.splitlines()[-1] == "0 passed, 1 failed, 0 not run"


@pytest.mark.parametrize(
    "line",
    [
        "{broken",
        "5",
        "[]",
        '{"id": 7}',
        {**GOOD, "kind": "unheard"},
        {**GOOD, "kind": None},
        {**GOOD, "format": "unheard"},
        {**GOOD, "input": {"n": 2}},
        {**GOOD, "input": None},
    ],
)
def test_what_cannot_be_run_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: Any) -> None:
    status, out = run(tmp_path, capsys, GOOD, line)
    assert (status, out.splitlines()[-1]) == (0, "1 passed, 0 failed, 1 not run")
    assert "not run, " in out


def test_parts_chunks_lengths_and_several_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = GOOD["input"]
    status, out = run(
        tmp_path,
        capsys,
        {**GOOD, "kind": "stream", "chunks": [text[:9], text[9:]]},
        {**GOOD, "input": {"parts": [["<tool_call>", 40]]}, "expected": {"tool_calls": [], "finish_reason": ["stop"]}},
        {
            **GOOD,
            "input": text[:40],
            "engine_finish": "length",
            "expected": {"content": None, "tool_calls": [], "finish_reason": "length"},
        },
        {
            **GOOD,
            "input": {"n": 2, "choice0": text, "choice1": "Hi."},
            "expected": {"choices": [GOOD["expected"], {"content": "Hi.", "tool_calls": [], "finish_reason": "stop"}]},
        },
    )
    assert (status, out.splitlines()[-1]) == (0, "4 passed, 0 failed, 0 not run")


def test_template_cases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = {
        "id": "t",
        "kind": "template",
        "format": "any",
        "tools": [],
        "input": {"messages": [{"role": "user", "content": "Hi"}]},
    }
    bad = {"messages": [{"role": "user", "content": 5}]}
    status, out = run(
        tmp_path,
        capsys,
        {**case, "expected": {"status": 200, "invariants": ["prompt contains Hi, not Ho"]}},
        {**case, "expected": {"status": 400}, "input": bad},
        {**case, "expected": {"invariants": ["something never heard of"]}},
        {**case, "expected": {"invariants": ["prompt contains Ho"]}},
    )
    assert status == 1
    assert out.splitlines()[-1] == "2 passed, 1 failed, 1 not run"


def test_comparison_is_strict_on_types() -> None:
    assert same_json({"a": [1, "x", None]}, {"a": [1.0, "x", None]})
    assert not any(
        (same_json(True, 1), same_json("5", 5), same_json(None, False), same_json({"a": 1}, {}), same_json(0, False))
    )
    assert same_content(None, "", with_calls=False)
    assert same_content(" a\n b ", "a b", with_calls=True)
    assert not same_content("a ", "a", with_calls=False)
