"""Valid JSON passes byte for byte; what is not valid is put right as it arrives, or is no call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolcall
from toolcall.json_stream import MAX_ATOM, MAX_DEPTH, read_object, read_value
from toolcall.json_text import is_object, number
from toolcall.json_whole import decode_all, loose_json
from toolcall.lexer import Lexer, NoCall

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def streamed(text: str, size: int = 1) -> str | None:
    """What read_value puts when the text comes in pieces."""
    lx, parts = Lexer(), []
    steps = read_value(lx, parts.append)
    try:
        next(steps)
        for i in range(0, len(text), size):
            piece = text[i : i + size]
            if not lx.quick(piece):
                lx.append(piece)
                next(steps)
        lx.eof = True
        next(steps)
    except StopIteration:
        return "".join(parts)
    except NoCall:
        return None
    raise AssertionError("the reader waits at the end of input")


@settings(max_examples=200, deadline=None)
@given(value=JSON, style=st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}]), ascii_only=st.booleans())
def test_json_passes_byte_for_byte_however_it_is_cut(value: Any, style: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, **style)
    assert streamed(text) == streamed(text, 3) == decode_all(read_value, text) == text


_KEYS = st.text(max_size=5) | st.booleans() | st.none() | st.integers()


@settings(max_examples=200, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(_KEYS, s, max_size=3),
        max_leaves=8,
    )
)
def test_python_literals_become_json(value: Any) -> None:
    text = decode_all(lambda lx, put: read_value(lx, put, python=True), repr(value))
    assert text is not None
    assert json.loads(text) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{1, 2}", [1, 2]),
        ("{-1.5}", [-1.5]),
        ("{'a', 2, None}", ["a", 2, None]),
        ("{1: 'a', None: 2}", {"1": "a", "null": 2}),
        ("{x: 1}", None),
        ("{NaN}", None),
        ("{'a':}", None),
        ("{1:}", None),
        ("{'a': 1, 'b':}", None),
        ("{'a': {}, 'b': {1}}", {"a": {}, "b": [1]}),
        ("NaN", None),
    ],
)
def test_python_braces(text: str, value: Any) -> None:
    found = decode_all(lambda lx, put: read_value(lx, put, python=True), text)
    assert (None if found is None else json.loads(found)) == value


@pytest.mark.parametrize(
    ("text", "repaired"),
    [
        ('"a\nb\tc\x01"', '"a\\nb\\tc\\u0001"'),
        (r'"\d+ C:\proj"', r'"\\d+ C:\\proj"'),
        (r'"it\'s"', '"it\'s"'),
        (r'"\u12"', r'"\\u12"'),
        (r'"\ud83d"', r'"\ud83d"'),
        ("[1, 2, ]", "[1, 2]"),
        ('{"a": 1,}', '{"a": 1}'),
        ("{'a': 'x\"y'}", '{"a": "x\\"y"}'),
        ("[True, None, False]", "[true, null, false]"),
        ("(1, 2)", "[1, 2]"),
        ("[007, +1, .5, 1_000]", "[7, 1, 0.5, 1000]"),
        ("[NaN, Infinity, -Infinity]", '["NaN", "Infinity", "-Infinity"]'),
        ('{"a": "x" "b": {"c": 1}"d": 2}', '{"a": "x" , "b": {"c": 1}, "d": 2}'),
        ('["a" "b" {"c": 1} [2]]', '["a" , "b" , {"c": 1} , [2]]'),
        ('[{"n": 1}{"n": 2}]', '[{"n": 1}, {"n": 2}]'),
        (
            "[nan, -NaN, +inf, INFINITY, TRUE, FALSE, NULL, undefined]",
            '["nan", "-NaN", "+inf", "INFINITY", true, false, null, null]',
        ),
        ('{"a": "say "x" now"}', '{"a": "say \\"x\\" now"}'),
        ('{"a": ""x" y", "b": "z"}', '{"a": "\\"x\\" y", "b": "z"}'),
        ('{"a": "x("KEY", "v")", "b": ["p"q"r"]}', '{"a": "x(\\"KEY\\", \\"v\\")", "b": ["p\\"q\\"r"]}'),
        ('{"a": "说"你好"。", "b": "$"$HOME"$"}', '{"a": "说\\"你好\\"。", "b": "$\\"$HOME\\"$"}'),
        ('{\xa0 "a"\u3000\n:\ufeff[1\x0b,\u200b2]\x85}', '{  "a" \n: [1 , 2] }'),
        ("{'a': 'it's O'Brien's'}", '{"a": "it\'s O\'Brien\'s"}'),
        ("[ ]", "[ ]"),
        ("{ }", "{ }"),
    ],
)
def test_repairs(text: str, repaired: str) -> None:
    assert streamed(text) == streamed(text, 4) == loose_json(text) == repaired
    json.loads(repaired)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1",
        '"a',
        '{"a"}',
        '{"a": }',
        '{"a": [], "b": }',
        '{"a": 1 2}',
        "[,]",
        "[1,,2]",
        "{1: 2}",
        "nope",
        "[nano]",
        "[1 2]",
        '{"a": "say "x now"}',
        '{"a": "say " x " now"}',
        '{"a": "x"y", "b": 5}',
        '{"a": "x", "b"c": 1}',
        '{"a": "x" + "y"}',
        '{"a": "x"+"y"}',
        "",
        "{]",
        "[}",
        '{"a":1]',
        "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1),
        "1" * (MAX_ATOM + 1),
        "--1",
        "1e",
        '"\\',
    ],
)
def test_what_is_no_value_is_refused(text: str) -> None:
    assert streamed(text) is None
    assert loose_json(text) is None


def test_doubled_outer_braces_are_one_pair() -> None:
    assert decode_all(read_object, '{{"a": {"b": 1}}}') == '{"a": {"b": 1}}'
    assert decode_all(read_object, '{ "a": 1 }') == '{ "a": 1 }'
    assert decode_all(read_object, "{}") == "{}"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", "1"),
        ("-0.5e+3", "-0.5e+3"),
        ("00", "0"),
        ("-007", "-7"),
        ("5.", "5"),
        ("-.5", "-0.5"),
        ("1e5", "1e5"),
        ("", None),
        (".", None),
        ("1.2.3", None),
        ("0x1", None),
        ("e5", None),
        ("-", None),
    ],
)
def test_numbers(text: str, value: str | None) -> None:
    assert number(text) == value
    assert value is None or isinstance(json.loads(value), int | float)


def test_is_object() -> None:
    assert is_object("{}")
    assert not any(map(is_object, ("[]", '{"a": NaN}', "{", "null", '{"a":' * 100_000)))


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "mistral"])
@pytest.mark.parametrize("number", ["7" * 500, "-" + "1" * 4000, "0." + "3" * 1000, "1" * 600 + "e5"])
def test_numbers_as_long_as_clients_can_read(name: str, number: str) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "number"}}}}}]
    call = f'{{"name": "f", "arguments": {{"a": {number}}}}}'
    text = {"hermes": f"<tool_call>{call}</tool_call>", "mistral": f"[TOOL_CALLS] [{call}]"}.get(name, call)
    (found,) = toolcall.parse(text, tools, format=name).tool_calls
    assert number in found.arguments
    json.loads(found.arguments)
