"""In ``auto``, a call without its format's marker is constrained exactly where the parser would take it for one."""

from __future__ import annotations

import numpy as np
import pytest

import toolcall
from tests.engine.grammar.vocabulary import VOCAB_SIZE, backend, encode
from toolcall.constraints import ConstrainedTool, ConstraintRequest, build_constraint
from toolcall.registry import get_reasoning
from toolcall.rescue import FENCES, SPELLINGS, STRAYS, WRAPPERS

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
MASK = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.int32)
CALLS = {
    "hermes": '{"name": "f", "arguments": {"city": "x"}}',
    "llama3_json": '{"name": "f", "parameters": {"city": "x"}}',
    "xlam": '[{"name": "f", "arguments": {"city": "x"}}]',
}
NATIVE = '<tool_call>\n{"name": "f", "arguments": {"city": "y"}}\n</tool_call>'
BEFORE = (
    "",
    " \n\n",
    "Sure. ",
    "Sure:\n\n",
    "For example:\n```json\n",
    "{} ",
    '{"name": "g", "arguments": {}}\n',
    "<think>Hm, {</think>\n\n",
    "<think>Hm.</think>Then: ",
    "x" * 5000,
    *(f"{fence}\n" for fence in FENCES),
    *STRAYS,
    *(f"{opener}\n" for opener, _ in WRAPPERS if opener != "<tool_call>"),
    *(f"{opener}\n" for opener in SPELLINGS),
)


@pytest.fixture(scope="module")
def engine():
    return backend()


def matcher_of(engine, name: str, reasoning="optional"):
    spec = build_constraint(ConstraintRequest(format=name, tools=[ConstrainedTool("f", SCHEMA)], reasoning=reasoning))
    return engine.matcher(engine.compile(spec))


def write(matcher, text: str) -> None:
    for token in encode(text):
        assert matcher.accept(token), text


def parsed(text: str, name: str) -> int:
    return len(toolcall.parse(text, TOOLS, format=name, reasoning=get_reasoning("qwen3")).tool_calls)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("before", BEFORE)
def test_constrained_where_the_parser_reads_a_call(engine, name, before):
    call = CALLS[name]
    matcher = matcher_of(engine, name)
    write(matcher, before + call[: call.index("x")])
    read = parsed(before + call, name) == 1
    assert matcher.fill_mask(MASK) == read, before


def test_a_list_in_a_fence_behind_text_is_held_to_its_end_and_the_text_behind_it_is_free(engine):
    matcher = matcher_of(engine, "xlam")
    call = '{"name": "f", "arguments": {"city": "x"}}'
    write(matcher, f"So:\n```json\n[{call}, {call}]\n```\nOk? {{}}\n```json\n[")
    assert not matcher.fill_mask(MASK)
    write(matcher, '1, 2]\n```\n```json\n[{"name": "f", "arguments": {"')
    assert matcher.fill_mask(MASK)
    write(matcher, "city")
    assert not matcher.accept(encode("town")[0])


@pytest.mark.parametrize("between", ["\n", "", ", ", "; ", " and then ", "\n\nOr:\n"])
@pytest.mark.parametrize("first", [CALLS["hermes"], NATIVE, f"```json\n{CALLS['hermes']}\n```"])
def test_after_another_call(engine, first, between):
    call = CALLS["hermes"]
    matcher = matcher_of(engine, "hermes")
    write(matcher, first + between + call[: call.index("x")])
    if parsed(first + between + call, "hermes") == 2:
        assert matcher.fill_mask(MASK)
    elif between.strip().isalpha():
        assert not matcher.fill_mask(MASK)


def test_after_reasoning_that_the_prompt_opened(engine):
    call = CALLS["hermes"]
    for thought, held in (("Hm {</think>\n", True), ("Hm {</think>\nSo: ", False), ("Hm ", False)):
        matcher = matcher_of(engine, "hermes", "open")
        write(matcher, thought + call[: call.index("x")])
        assert matcher.fill_mask(MASK) == held, thought


def test_native_calls_are_constrained_after_prose_and_after_prose_with_an_example(engine):
    matcher = matcher_of(engine, "hermes")
    write(matcher, f"An example: {CALLS['hermes']} and now:\n")
    assert not matcher.fill_mask(MASK)
    write(matcher, NATIVE[: NATIVE.index("y")])
    assert matcher.fill_mask(MASK)


def test_a_copy_remembers_whether_prose_was_written(engine):
    call = CALLS["hermes"][: CALLS["hermes"].index("x")]
    matcher = matcher_of(engine, "hermes")
    guesses = matcher.copy()
    write(guesses, "So: ")
    guesses = guesses.copy()
    write(guesses, call)
    assert not guesses.fill_mask(MASK)
    write(matcher, call)
    assert matcher.fill_mask(MASK)
