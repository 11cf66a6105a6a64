"""The case runner's kinds that need a server: what holds passes, what does not fails, what cannot be judged is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases.__main__ import main

pytestmark = pytest.mark.e2e

CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": CITY}}]
USER = [{"role": "user", "content": "hi"}]
FORCED = {"messages": USER, "tools": TOOLS, "tool_choice": "required"}
VALID = "arguments validate against the schema"


def case(kind: str, given: Any, **expected: Any) -> dict[str, Any]:
    return {"kind": kind, "format": "any", "tier": "must", "tools": TOOLS, "input": given, "expected": expected}


GOOD = {
    "forced": case("grammar", FORCED, status=200, finish_reason="tool_calls", invariants=[VALID, "engine alive"]),
    "refused": case("request", {"messages": USER, "tool_choice": "required"}, status=400, error={"param": "tool_choice"}),
    "auto": case("request", {"messages": USER, "tools": TOOLS}, status=200, invariants=["if a call is made, it is valid"]),
    "to the letter": case(
        "api", FORCED, status=200, tool_calls=[{"name": "f", "arguments": {"city": "Lima"}}], finish_reason="tool_calls"
    ),
    "null content": case("api", {"situation": "turn with calls and no text"}, invariants=["message.content is null"]),
    "said": case("api", {"model_output": "Answer 42"}, content="Answer 42", finish_reason="stop"),
}  # fmt: skip
BAD = {
    "other status": case("grammar", FORCED, status=400),
    "other error": case("request", {"messages": USER, "tool_choice": "required"}, status=400, error={"code": "x"}),
    "no call": case("request", {"messages": USER, "tools": TOOLS}, invariants=["len(tool_calls) >= 1"]),
    "other calls": case("api", FORCED, tool_calls=[{"name": "g", "arguments": {"city": "Lima"}}]),
    "too many": case("api", FORCED, invariants=["len(tool_calls) == 0"]),
    "not null": case("api", {"model_output": "Answer 42"}, invariants=["message.content is null"]),
    "other text": case("api", {"model_output": "Answer 42"}, content="Answer 43"),
    "other end": case("api", {"model_output": "Answer 42"}, finish_reason="length"),
}
UNKNOWN = {
    "situation": case("api", {"situation": "never heard of"}),
    "words": case("grammar", FORCED, status=200, invariants=["never heard of"]),
    "words of a situation": case("api", {"model_output": "Hi."}, invariants=["never heard of"]),
    "input": case("request", "text"),
    "format": {**case("request", FORCED), "format": "never heard of"},
}


def test_cases_that_need_a_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.jsonl"
    rows = [{"id": name, **row} for group in (GOOD, BAD, UNKNOWN) for name, row in group.items()]
    file.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    status = main([str(file)])
    out = capsys.readouterr().out
    assert status == 1
    assert out.splitlines()[-1] == f"{len(GOOD)} passed, {len(BAD)} failed, {len(UNKNOWN)} not run", out
    assert all(f"FAILED {name} (" in out for name in BAD)
