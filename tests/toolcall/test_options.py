"""What a request asks of the parser: tool_choice, one call only, ids, no tools; and what one parser may not do to another."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

import toolcall
from tests.toolcall.fuzzing import TOOLS
from tests.toolcall.render_calls import RENDERERS
from tests.toolcall.running import events_of
from toolcall.ids import make_id_factory
from toolcall.registry import list_formats

CALLS = [("get-it", {"zip": "1"}), ("get-it", {"zip": "2"})]
NAMES = [f.name for f in list_formats() if f.name not in ("pythonic", "olmo3", "lfm2")]
SPECIAL = [f.name for f in list_formats() if f.own_markers_special and f.name not in ("lfm2", "inkling")]


def ids_of(name: str, **options: object) -> list[str]:
    events = events_of(name, [RENDERERS[name](CALLS)], **options)
    return [e.id for e in events if isinstance(e, toolcall.ToolCallStart)]


@pytest.mark.parametrize("name", NAMES)
def test_one_call_only(name: str) -> None:
    text = RENDERERS[name](CALLS) + " and more text"
    parser = toolcall.OutputParser(toolcall.get_format(name), TOOLS, parallel_tool_calls=False)
    events = []
    fed = 0
    for char in text:
        assert not parser.stopped
        events += parser.feed(char)
        fed += 1
        if parser.stopped:
            break
    assert fed < len(text) * 2 / 3
    assert parser.feed(text[fed:]) == parser.finish() == []
    answer = toolcall.fold(events)
    assert [c.arguments for c in answer.tool_calls] == [toolcall.fold(events_of(name, [text])).tool_calls[0].arguments]
    assert answer.content == ""


@pytest.mark.parametrize("name", [n for n in NAMES if n not in SPECIAL and n != "muse_glimmer"])
def test_tool_choice_none_leaves_text_alone(name: str) -> None:
    text = RENDERERS[name](CALLS) + "\n"
    answer = toolcall.fold(events_of(name, list(text), tool_choice="none"))
    hidden = toolcall.get_format(name).hidden
    assert (answer.content, answer.tool_calls) == (text, ()) or hidden


@pytest.mark.parametrize("name", SPECIAL)
def test_tool_choice_none_shows_no_calls_in_special_tokens(name: str) -> None:
    answer = toolcall.fold(events_of(name, list(RENDERERS[name](CALLS)), tool_choice="none"))
    assert (answer.content, answer.tool_calls, answer.finish_reason) == ("", (), "stop")


@pytest.mark.parametrize("name", [f.name for f in list_formats() if f.protocol is None and not f.hidden])
def test_without_tools_nothing_is_parsed(name: str) -> None:
    text = RENDERERS[name]([("fs.now", {})]) + '\n{"name": "fs.now", "arguments": {}}'
    assert toolcall.fold(events_of(name, list(text), tools=[])).content == text
    none = toolcall.parse(text, TOOLS, "none")
    assert (none.content, none.tool_calls) == (text, ())


def test_id_styles() -> None:
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", i) for i in ids_of("hermes"))
    assert all(re.fullmatch(r"[A-Za-z0-9]{9}", i) for i in ids_of("mistral"))
    assert ids_of("kimi_k2") == ["functions.get-it:0", "functions.get-it:1"]
    assert ids_of("kimi_k2", id_factory=make_id_factory("kimi", 3)) == ["functions.get-it:3", "functions.get-it:4"]
    assert len({i for _ in range(50) for i in ids_of("hermes")}) == 100


def test_parsers_share_nothing() -> None:
    a = toolcall.OutputParser(toolcall.get_format("hermes"), TOOLS)
    b = toolcall.OutputParser(toolcall.get_format("hermes"), TOOLS)
    text = RENDERERS["hermes"](CALLS)
    events = [[], []]
    for char, other in zip(text, "Plain text answer." + " " * len(text)):
        events[0] += a.feed(char)
        events[1] += b.feed(other)
    events[0] += a.finish()
    events[1] += b.finish()
    assert len(toolcall.fold(events[0]).tool_calls) == 2
    assert toolcall.fold(events[1]).content.rstrip() == "Plain text answer."


def test_finish_twice_and_feeding_nothing_are_harmless() -> None:
    parser = toolcall.OutputParser(toolcall.get_format("hermes"), TOOLS)
    assert parser.feed("") == []
    assert parser.feed("a") == [toolcall.TextDelta("a")]
    assert parser.finish() == []
    assert parser.finish() == parser.feed("b") == []


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_no_text_comes_behind_the_start_of_a_call_that_is_cut_off(name: str) -> None:
    """Clients take any text behind a call for the answer, and white space for text."""
    text = "Hm.\n\n" + RENDERERS[name]([("write_file", {"path": "a", "content": "b" * 80})]) + "\n\n"
    for size in range(8, len(text) + 1):
        events = events_of(name, list(text[:size]), finish="length")
        started = [i for i, e in enumerate(events) if isinstance(e, toolcall.ToolCallStart)]
        late = [e.text for e in events[started[0] :] if isinstance(e, toolcall.TextDelta)] if started else []
        assert not late, text[:size]


def test_a_name_goes_out_once_whole_and_before_its_arguments_end() -> None:
    text = RENDERERS["hermes"]([("write_file", {"path": "a", "content": "x" * 200})])
    events = events_of("hermes", list(text))
    assert isinstance(events[0], toolcall.ToolCallStart)
    assert events[0].name == "write_file"
    assert sum(isinstance(e, toolcall.ToolCallArguments) for e in events) > 200
    assert isinstance(events[-1], toolcall.ToolCallEnd)


@pytest.mark.parametrize("value", ['{"city": }', '{"city": nope(}', '{"city"}', "{1: 1}"])
def test_a_call_that_breaks_before_its_first_value_never_starts(value: str) -> None:
    text = f'<tool_call>\n{{"name": "get-it", "arguments": {value}}}\n</tool_call>'
    events = events_of("hermes", list(text))
    assert not any(isinstance(e, toolcall.ToolCallStart) for e in events)
    assert toolcall.fold(events).content == text


def test_a_call_that_breaks_later_gets_no_end_and_its_text_is_kept() -> None:
    text = '<tool_call>\n{"name": "get-it", "arguments": {"zip": "1", "b": }}\n</tool_call>'
    events = events_of("hermes", list(text))
    assert isinstance(events[0], toolcall.ToolCallStart)
    answer = toolcall.fold(events)
    assert (answer.content, answer.tool_calls, answer.finish_reason) == (text, (), "stop")


def test_the_package_needs_neither_torch_nor_the_server() -> None:
    code = (
        "import sys, toolcall; toolcall.parse('<tool_call>', [{'name': 'f'}]);"
        "print([m for m in sys.modules if m.split('.')[0] in ('torch', 'fastapi', 'server', 'pydantic', 'zmq', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_unknown_names_say_what_is_known() -> None:
    with pytest.raises(ValueError, match="hermes"):
        toolcall.parse("", [], "no-such-format")
    with pytest.raises(ValueError, match="qwen3"):
        toolcall.parse("", [], reasoning="no-such-reasoning")
