"""Calls of tools that were not declared: handed over where the format's own marks say that they are calls."""

from __future__ import annotations

from typing import Any

import pytest

import toolcall
from tests.toolcall.render_calls import RENDERERS, VARIANTS, Call
from tests.toolcall.running import calls_of, events_of, read_however_cut
from tests.toolcall.test_chunking import without_layout
from toolcall.schema import ToolSet

TOOLS: list[dict[str, Any]] = [{"name": "View", "parameters": {"properties": {"path": {"type": "string"}}}}]
READ: Call = ("Read", {"path": "a.py", "note": 'x "y" {z}'})
VIEW: Call = ("View", {"path": "b"})
BARE = ("llama3_json", "pythonic", "xlam", "minicpm5")
"""Formats whose calls nothing but their name tells from text."""
ROWS = [(name, r[name]) for r in (RENDERERS, VARIANTS) for name in r if r is VARIANTS or name not in BARE]


def read(name: str, text: str, tools: Any = TOOLS, **options: Any) -> toolcall.ParsedOutput:
    options = {"prompt_suffix": "<|start|>assistant", **options} if name == "gpt_oss" else options
    return read_however_cut(name, text, tools=tools, **options)


@pytest.mark.parametrize(("name", "render"), ROWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROWS)])
def test_a_whole_call_between_the_format_s_marks_goes_to_the_client(name: str, render: Any) -> None:
    for calls in ([READ], [VIEW, READ], [READ, VIEW]):
        answer = read(name, render(calls))
        assert (calls_of(answer), answer.content, answer.finish_reason) == (calls, "", "tool_calls")


@pytest.mark.parametrize(("name", "render"), ROWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROWS)])
def test_it_stays_text_to_the_letter_where_that_is_asked_for_or_the_name_is_refused(name: str, render: Any) -> None:
    text = render([("Read", {"path": "a.py"})])
    assert read(name, text, undeclared=False).tool_calls == ()
    answer = read(name, text, ToolSet(TOOLS, refused=["Read"]))
    assert answer.tool_calls == ()
    assert without_layout(name, answer.content) == without_layout(name, text)


@pytest.mark.parametrize(("name", "render"), ROWS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(ROWS)])
def test_nothing_of_it_goes_out_before_it_is_whole(name: str, render: Any) -> None:
    text = render([("Read", {"path": "a.py", "note": "xy"})])
    suffix = "<|start|>assistant" if name == "gpt_oss" else ""
    for size in range(text.index("xy") + 2):
        assert not any(
            isinstance(event, toolcall.ToolCallStart)
            for event in events_of(name, [text[:size]], tools=TOOLS, finish="length", prompt_suffix=suffix)
        )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{"name": "Read"}\n</tool_call>'),
        ("hermes", '<tool_call>{"name": "no name", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "<function-name>", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "Read", "arguments": {"path": }}</tool_call>'),
        ("hermes", "<tool_call><function=Read>\n<parameter=path>\na\n</parameter>\n</function></tool_call>"),
        ("hermes", '```json\n{"name": "Read", "arguments": {}}\n```'),
        ("qwen3_coder", "<function=Read>\n<parameter=path>\na\n</parameter>\n</function>"),
        ("qwen3_coder", "<tool_call>\n<function=Read>"),
        ("glm45", "<tool_call>tag</tool_call>"),
        ("glm45", "<tool_call>is a tag\n</tool_call>"),
        ("llama3_json", '{"name": "Read", "parameters": {"path": "a"}}'),
        ("llama3_json", '<|python_tag|>print(end="x")'),
        ("pythonic", "[Read(path='a')]"),
        ("minimax_m2", '<invoke name="Read">\n<parameter name="path">a</parameter>\n</invoke>'),
        ("gpt_oss", '<|channel|>commentary to=browser.search<|message|>{"query": "x"}<|call|>'),
        ("gpt_oss", "<|channel|>analysis to=python code<|message|>{}<|call|>"),
    ],
)
def test_what_is_no_whole_call_or_stands_unmarked_is_text(name: str, text: str) -> None:
    answer = read(name, text)
    assert (answer.tool_calls, answer.content) == ((), text)


def test_a_draft_in_open_reasoning_is_none() -> None:
    text = '<think>\nI could <tool_call>{"name": "Read", "arguments": {}}</tool_call>'
    assert read("hermes", text, reasoning="qwen3").tool_calls == ()
