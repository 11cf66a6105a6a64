"""Grammars of custom tools as the engine gets them: what a call may say, format by format, and what is told of the rest."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.constrainer import Constrainer
from server.constraints import FREE, ConstraintPlan, constraint
from server.errors import BadRequest
from server.tools import Tools, parse_tools
from tests.cases.grammars import follows
from tests.server.test_lark_pattern import PATCH, SUM

ADD: dict[str, Any] = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
OTHER: dict[str, Any] = {"type": "custom", "custom": {"name": "other"}}
WRITTEN = {
    "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"input": {json}}}}}\n</tool_call>',
    "llama3_json": '{{"name": "f", "parameters": {{"input": {json}}}}}',
    "mistral": '[TOOL_CALLS] [{{"name": "f", "arguments": {{"input": {json}}}}}]',
    "pythonic": "[f(input={json})]",
    "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=input>\n{text}\n</parameter>\n</function>\n</tool_call>",
}
DIFF = '*** Begin Patch\n*** Add File: a.py\n+\tprint("\\n")\n*** Update File: é\n@@\n-a\n+b\n*** End Patch'
TEXTS = [
    ("lark", PATCH, [DIFF], [DIFF.replace("+b", "b"), DIFF + "\nmore", "*** Begin Patch"]),
    ("lark", SUM, ["1 + 2*x"], ["1 +", "1 2"]),
    ("regex", r"^[a-z\"\\\n]{2,4}$", ["ab", '"\\\n'], ["a", "abcde", "AB"]),
    ("regex", "yes|no", ["yes", "no"], ["yess", "maybe"]),
]  # fmt: skip


@pytest.fixture
async def constrainer() -> AsyncIterator[Constrainer]:
    made = Constrainer()
    yield made
    await made.close()


def tool(syntax: str, definition: str) -> dict[str, Any]:
    grammar = {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}
    return {"type": "custom", "custom": {"name": "f", "format": grammar}}


def tools(syntax: str, definition: str, choice: Any = "required") -> Tools:
    return parse_tools([ADD, OTHER, tool(syntax, definition)], choice, None)


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize(("syntax", "definition", "good", "bad"), TEXTS)
async def test_calls_keep_to_it(
    constrainer: Constrainer, name: str, choice: str, syntax: str, definition: str, good: list[str], bad: list[str]
) -> None:
    plan = ConstraintPlan(format=name, tools=tools(syntax, definition, choice), shape=FREE)
    found = await constraint(plan, constrainer)
    assert found.relaxations == ()
    assert found.spec is not None

    def allowed(text: str) -> bool:
        return follows(found.spec, WRITTEN[name].format(json=json.dumps(text, ensure_ascii=False), text=text))

    assert [text for text in good if not allowed(text)] == []
    assert [text for text in bad if allowed(text)] == []


@pytest.mark.parametrize("definition", ["a(?=b)c", "(a)\\1", "a^b"])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "custom": {"name": "f"}}])
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
async def test_what_is_beyond_the_compiler_is_told_by_the_clients_own_name(
    constrainer: Constrainer, name: str, choice: Any, definition: str
) -> None:
    found = await constraint(
        ConstraintPlan(format=name, tools=tools("regex", definition, choice), shape=FREE), constrainer
    )
    assert [note.partition(" is not enforced")[0] for note in found.relaxations] == ["tools[2].custom.format"]
    assert found.spec is not None


@pytest.mark.parametrize("definition", ["(", "*", "a{3,1}", "[", "x" * 63_999 + "("])
@pytest.mark.parametrize("choice", ["auto", "required", {"type": "custom", "name": "f"}])
async def test_what_is_no_regex_is_refused_by_the_clients_own_name(
    constrainer: Constrainer, choice: Any, definition: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        await constraint(
            ConstraintPlan(format="hermes", tools=tools("regex", definition, choice), shape=FREE), constrainer
        )
    assert caught.value.param == "tools[2].custom.format"
    assert caught.value.message.startswith("Invalid schema: tools[2].custom.format: ")


async def test_notes_count_the_tools_as_the_client_does(constrainer: Constrainer) -> None:
    """Also where only some of them may be called."""
    looking = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=x)x"}}}
    declared = [ADD, OTHER, {"type": "function", "function": {"name": "g", "parameters": looking}}]
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    parsed = parse_tools(declared, {"type": "allowed_tools", "allowed_tools": allowed}, None)
    found = await constraint(ConstraintPlan(format="hermes", tools=parsed, shape=FREE), constrainer)
    assert [note.partition(" is not enforced")[0] for note in found.relaxations] == [
        "tools[2].function.parameters/properties/a/pattern"
    ]
