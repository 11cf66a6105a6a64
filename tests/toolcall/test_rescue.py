"""Calls outside the model's own format: read for declared tools where a call may stand, and otherwise text."""

from __future__ import annotations

import json
from typing import Any

import pytest

import toolcall
from tests.toolcall.running import events_of, merged
from toolcall.registry import list_formats
from toolcall.rescue import FENCES, STRAYS, WRAPPERS

OBJECT = '{"name": "get-it", "arguments": {"zip": "1"}}'
NOW = '{"name": "fs.now", "arguments": {}}'


def read(text: str, fmt: str = "hermes", **options: Any) -> toolcall.ParsedOutput:
    whole = events_of(fmt, [text], **options)
    assert merged(events_of(fmt, list(text), **options)) == merged(whole)
    return toolcall.fold(whole)


@pytest.mark.parametrize(
    "text",
    [
        OBJECT,
        f"\n {OBJECT}\n",
        f"```json\n{OBJECT}\n```",
        f"```\n{OBJECT}\n```\n",
        f"```json\n{OBJECT}",
        f"[{OBJECT}]",
        f"<tools>\n{OBJECT}\n</tools>",
        f"<tools>\n[{OBJECT}]\n</tools>",
        f"<function_call>{OBJECT}</function_call>",
        '{"type": "function", "function": {"name": "get-it", "arguments": {"zip": "1"}}}',
        '{"name": "get-it", "parameters": {"zip": "1"}}',
        '{"arguments": {"zip": "1"}, "name": "get-it"}',
        '{"name": "get-it", "arguments": "{\\"zip\\": \\"1\\"}"}',
        '{"id": "x", "name": "get-it", "arguments": {"zip": "1"}}',
        "<function=get-it>\n<parameter=zip>\n1\n</parameter>\n</function>",
        '<function=get-it>{"zip": "1"}</function>',
        "<tool_call>\n<function=get-it>\n<parameter=zip>\n1\n</parameter>\n</function>\n</tool_call>",
        *(f"{stray}{space}{OBJECT}" for stray in STRAYS for space in ("", "\n")),
        f"tool_call>\n{OBJECT}\n</tool_call>",
        f">\n{OBJECT}\n</tool_call>",
        f"{OBJECT}\n</tool_call>",
    ],
)
@pytest.mark.parametrize("fmt", ["hermes", "deepseek_v31", "glm45"])
def test_the_call_is_read_and_marked(text: str, fmt: str) -> None:
    answer = read(text, fmt)
    assert [(c.name, json.loads(c.arguments), c.rescued) for c in answer.tool_calls] == [("get-it", {"zip": "1"}, True)]
    assert (answer.content, answer.finish_reason) == ("", "tool_calls")
    plain = read(text, fmt, rescue=False)
    assert (plain.content, plain.tool_calls) == (text, ())


@pytest.mark.parametrize(
    "text",
    [
        f"{OBJECT}\n{NOW}",
        f"{OBJECT}, {NOW}",
        f"{OBJECT}; {NOW}",
        f"```json\n{OBJECT}\n{NOW}\n```",
        f"```json\n[{OBJECT}, {NOW}]\n```",
        f"```json\n{OBJECT}\n```\n\n```json\n{NOW}\n```",
        f"<tools>{OBJECT}\n{NOW}</tools>",
        f"<tool_call>\n{OBJECT}\n</tool_call>\n{NOW}",
    ],
)
def test_several_calls(text: str) -> None:
    answer = read(text)
    assert [c.name for c in answer.tool_calls] == ["get-it", "fs.now"]
    assert answer.content == ""


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Alice", "arguments": {"zip": "1"}}',
        '{"name": "get-it"}',
        '{"name": "get-it", "arguments": [1]}',
        '{"name": "get-it", "arguments": 5}',
        '{"name": "get-it", "arguments": {"zip": "1"}, "score": 5}',
        '{"answer": {"name": "get-it", "arguments": {}}}',
        '{"name": "get-it", "arguments": {"zip": "1"',
        '{"name": "get-it", "arguments": {"zip": "1"}',
        f"Call it like this: {OBJECT}",
        f"Like so:\n```json\n{OBJECT}\n```\nShall I?",
        f"Like so: <tools>{OBJECT}</tools>",
        f"x>{OBJECT}",
        f">>{OBJECT}",
        '>{"name": "Alice", "arguments": {}}',
        *(f"{stray} text" for stray in STRAYS),
        *STRAYS,
        "tool_call> is the tag",
        "tool_call",
        '["a", "b"]',
        "[]",
        "{}",
        "```python\nprint(1)\n```",
        '```json\n{"a": 1}\n```',
        "<tools>none</tools>",
        "<function=no-tool>\n</function>",
        "See <functionality> and <function=",
        "[{",
    ],
)
def test_what_is_no_call_stays_text_to_the_letter(text: str) -> None:
    answer = read(text)
    assert (answer.content, answer.tool_calls, answer.finish_reason) == (text, (), "stop")


STRANGE = '{"name": "get-it", "arguments": {"zip": "1"}, "why": "an example"}'
PLACES = ["{}", "[{}]", *(f"{fence}\n{{}}\n```" for fence in FENCES), *(f"{o}{{}}{c}" for o, c in WRAPPERS)]


@pytest.mark.parametrize("place", PLACES)
def test_an_object_with_other_keys_is_no_call_wherever_it_stands(place: str) -> None:
    for fmt in list_formats():
        if fmt.protocol is None and not any(mark in fmt.own_tables.markers.words for mark in place.split("{}") if mark):
            text = place.replace("{}", STRANGE)
            assert read(text, fmt.name).tool_calls == (), fmt.name
            call = read(place.replace("{}", OBJECT), fmt.name).tool_calls
            assert [c.name for c in call] == ["get-it"], fmt.name


def test_what_no_call_was_cut_off_in_stays_text() -> None:
    """A reader that wanted more than there was does not make a later block, which is whole, one that was cut off."""
    text = """{'x <tool_call>{"name": "none", "arguments": {}}</tool_call> and so on"""
    for fmt in ("hermes", "internlm", "xlam"):
        assert read(text, fmt, finish="length", undeclared=False).content == text


def test_text_after_a_rescued_call_is_kept() -> None:
    answer = read(f"```json\n{OBJECT}\n```\nI will look it up, {{ok}}.")
    assert (answer.content, len(answer.tool_calls)) == ("I will look it up, {ok}.", 1)


def test_nothing_of_a_rescued_call_goes_out_before_it_is_whole() -> None:
    parser = toolcall.OutputParser(toolcall.get_format("hermes"), [{"name": "get-it"}])
    assert parser.feed(OBJECT[:-1]) == []
    assert [type(e) for e in parser.feed("}")] == [
        toolcall.ToolCallStart,
        toolcall.ToolCallArguments,
        toolcall.ToolCallEnd,
    ]


@pytest.mark.parametrize(
    "text", ['{"name": "A', '{"answer"', '["', "```p", "{1", '{"name": 5', '{"name": "get-it", "arguments": 5,']
)
def test_text_is_released_at_the_character_that_rules_a_call_out(text: str) -> None:
    parser = toolcall.OutputParser(toolcall.get_format("hermes"), [{"name": "get-it"}])
    sent = [(i, event) for i, char in enumerate(text) for event in parser.feed(char)]
    assert sent == [(len(text) - 1, toolcall.TextDelta(text))]


@pytest.mark.parametrize("fmt", [f.name for f in list_formats()])
def test_rescue_never_takes_a_native_call_for_its_own(fmt: str) -> None:
    answer = read(OBJECT, fmt)
    assert [c.name for c in answer.tool_calls] == ["get-it"]
    native = fmt in ("llama3_json", "xlam")
    assert answer.tool_calls[0].rescued is not native


def test_a_dialect_inside_the_own_block_counts_as_rescued() -> None:
    tags = "<function=get-it>\n<parameter=zip>\n1\n</parameter>\n</function>"
    assert read(f"<tool_call>\n{tags}\n</tool_call>", "hermes").tool_calls[0].rescued
    assert not read(f"<tool_call>\n{tags}\n</tool_call>", "qwen3_coder").tool_calls[0].rescued
    assert read(f"<tool_call>\n{OBJECT}\n</tool_call>", "qwen3_coder").tool_calls[0].rescued
    assert read(f"<tool_call>\n{OBJECT}\n</tool_call>", "qwen3_coder", rescue=False).tool_calls == ()
