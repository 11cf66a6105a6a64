"""What is damaged inside marks that say that a call stands there is put right; where nothing says so it is text."""

from __future__ import annotations

import json
from typing import Any

import pytest

import toolcall
from tests.toolcall.running import calls_of, read_however_cut

TOOLS: list[dict[str, Any]] = [
    {
        "name": "put",
        "parameters": {
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "lines": {"type": "array", "items": {"type": "integer"}},
                "opts": {"type": "object"},
                "n": {"type": ["integer", "null"]},
            }
        },
    },
    {"name": "now", "parameters": {"properties": {}}},
]
Call = tuple[str, dict[str, Any]]


def read(name: str, text: str, finish: str = "stop", **options: Any) -> toolcall.ParsedOutput:
    return read_however_cut(name, text, finish, tools=TOOLS, **options)


JSON: list[tuple[str, dict[str, Any]]] = [
    # white space and comments
    (r'{"path": "a", "lines": \n[1, 2]\n\n}', {"path": "a", "lines": [1, 2]}),
    (r'{\n\t"path": "a\n"\n}', {"path": "a\n"}),
    ('{\n  // where\n  "path": "a", /* what { " */ "text": "b // c"}', {"path": "a", "text": "b // c"}),
    # commas and colons
    ('{"path": "a",, "text": "b"}', {"path": "a", "text": "b"}),
    ('{, "path": "a"}', {"path": "a"}),
    ('{"path": "a"; "lines": [1;2,,3]}', {"path": "a", "lines": [1, 2, 3]}),
    ('{"path" = "a"}', {"path": "a"}),
    ('{"path"："a"}', {"path": "a"}),
    # quotes
    ("{“path”: “a”, “text”: “b”}", {"path": "a", "text": "b"}),
    ("{”path“：”a“，”text“：“他说“好”，走了”}", {"path": "a", "text": "他说“好”，走了"}),
    ('{“path": “a", "text": “say "hi" now”}', {"path": "a", "text": 'say "hi" now'}),
    ('{"path": `a`, "text": `b "c"\n${d}`}', {"path": "a", "text": 'b "c"\n${d}'}),
    ("{'text': 'print('hi')', 'path': 'it's'}", {"text": "print('hi')", "path": "it's"}),
    ('{"text": "a" + "b" +\n \'c\', "path": "d"}', {"text": "abc", "path": "d"}),
    ('{"text": “”, "path": ``}', {"text": "", "path": ""}),
    # words without quotes
    ('{"path": *.tsx, "text": New York}', {"path": "*.tsx", "text": "New York"}),
    (
        '{"path": /a/b.py, "text": 2026-01-15, "lines": [one, 2]}',
        {"path": "/a/b.py", "text": "2026-01-15", "lines": ["one", 2]},
    ),
    # brackets
    ('{{{"path": "a"}}}', {"path": "a"}),
    ('{"path": "a", "lines": [1, 2}', {"path": "a", "lines": [1, 2]}),
    ('{"opts": {"a": [{"b": 1]}, "path": "a"}', {"opts": {"a": [{"b": 1}]}, "path": "a"}),
    ('{"path": "a"], "text": "b"}', {"path": "a", "text": "b"}),
    ('[{"path": "a"}]', {"path": "a"}),
]
CLOSED: list[tuple[str, dict[str, Any]]] = [
    ('{"path": "a"', {"path": "a"}),
    ('{"path": "a",', {"path": "a"}),
    ('{"opts": {"a": [1, {"b": "c"', {"opts": {"a": [1, {"b": "c"}]}}),
]
"""Brackets are missing at the end; what follows the call says that it is one."""
AROUND = [
    ("hermes", '<tool_call>\n{{"name": "put", "arguments": {}}}\n</tool_call>'),
    ("longcat", '<longcat_tool_call>{{"name": "put", "arguments": {}}}</longcat_tool_call>'),
    ("qwen3_coder", "<tool_call>\n<function=put>\n{}\n</function>\n</tool_call>"),
    ("mistral", "[TOOL_CALLS]put[ARGS]{}[TOOL_CALLS]now[ARGS]{{}}"),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>put<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.put:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
    ),
    ("gpt_oss", "<|channel|>commentary to=functions.put <|constrain|>json<|message|>{}<|call|>"),
    ("jamba", '<tool_calls>[{{"name": "put", "arguments": {}}}]</tool_calls>'),
]


@pytest.mark.parametrize(("damaged", "arguments"), [*JSON, *CLOSED])
@pytest.mark.parametrize(("name", "around"), AROUND, ids=[name for name, _ in AROUND])
def test_damaged_json_between_marks(name: str, around: str, damaged: str, arguments: dict[str, Any]) -> None:
    text = around.replace("{}", "\0", 1).replace("{{", "{").replace("}}", "}").replace("\0", damaged)
    if name == "qwen3_coder" and damaged[0] == "[":
        pytest.skip("no object")
    calls = calls_of(read(name, text))
    assert calls[:1] == [("put", arguments)]
    assert calls[1:] == ([("now", {})] if name == "mistral" else [])


@pytest.mark.parametrize(("damaged", "_"), JSON[1:])
@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("hermes", '{"name": "put", "arguments": %s}'),
        ("llama3_json", '{"name": "put", "parameters": %s}'),
        ("hermes", '```json\n{"name": "put", "arguments": %s}\n```'),
    ],
)
def test_the_same_where_nothing_says_that_it_is_a_call_is_text(name: str, around: str, damaged: str, _: Any) -> None:
    text = around % damaged
    answer = read(name, text)
    assert all(json.loads(call.arguments) is not None for call in answer.tool_calls)
    assert answer.tool_calls == () or answer.content == "" or "print(" in damaged
    if any(mark in damaged for mark in ("//", "“", "`", " + ", "Oslo", "*.tsx", ",,", "；", "=", "\\n[")):
        assert (answer.tool_calls, answer.content) == ((), text)


@pytest.mark.parametrize(("damaged", "_"), CLOSED)
def test_missing_brackets_where_the_answer_is_cut_off_or_ends(damaged: str, _: Any) -> None:
    text = f'<tool_call>\n{{"name": "put", "arguments": {damaged}'
    for finish in ("stop", "length"):
        assert read("hermes", text, finish).tool_calls == ()


@pytest.mark.parametrize(
    "value",
    [
        '{"path": }',
        '{"path"}',
        '{"path": a(b)}',
        '{"path": "a}',
        '{"path": a "b"}',
        '{"path": “a}',
        '{"path": /* a}',
        "{1: 2}",
    ],
)
def test_what_cannot_be_put_right_is_text(value: str) -> None:
    text = f'<tool_call>\n{{"name": "put", "arguments": {value}}}\n</tool_call>'
    answer = read("hermes", text)
    assert (answer.tool_calls, answer.content) == ((), text)


@pytest.mark.parametrize("name", ["null", "put2", "True"])
def test_a_name_without_quotes_is_that_of_a_declared_tool(name: str) -> None:
    text = '<tool_call>\n{"name": %s, "arguments": {"path": "a"}}\n</tool_call>'
    assert calls_of(read("hermes", text % "put")) == [("put", {"path": "a"})]
    assert read("hermes", text % name).tool_calls == ()


VALUES: list[tuple[str, dict[str, Any]]] = [
    ("<parameter=lines>\n[1, 2\n</parameter>", {"lines": [1, 2]}),
    ("<parameter=lines>\n\\n[1, 2]\\n\n</parameter>", {"lines": [1, 2]}),
    ('<parameter=opts>\n{"a": {"b": [1}}\n</parameter>', {"opts": {"a": {"b": [1]}}}),
    ("<parameter=opts>\n{“a”: 1, // b\n}\n</parameter>", {"opts": {"a": 1}}),
    ('<parameter=opts>\n```json\n{"a": 1}\n```\n</parameter>', {"opts": {"a": 1}}),
    ("<parameter=text>\n{“a”: 1, // b\n\n</parameter>", {"text": "{“a”: 1, // b\n"}),
    ("<parameter=other>\n{“a”: 1\n</parameter>", {"other": "{“a”: 1"}),
    ("<parameter=n>\n\n</parameter>", {"n": None}),
    ("<parameter=lines>\none\n</parameter>", {"lines": "one"}),
]


@pytest.mark.parametrize(("parameter", "arguments"), VALUES)
def test_damaged_json_in_a_value_whose_type_says_that_it_is_json(parameter: str, arguments: dict[str, Any]) -> None:
    text = f"<tool_call>\n<function=put>\n{parameter}\n</function>\n</tool_call>"
    assert calls_of(read("qwen3_coder", text)) == [("put", arguments)]


PYTHON: list[tuple[str, dict[str, Any]]] = [
    ("put(text='print('hi')')", {"text": "print('hi')"}),
    ("put(text='f('a', 'b')', path='it's')", {"text": "f('a', 'b')", "path": "it's"}),
    ("put(text='it's', lines=[1])", {"text": "it's", "lines": [1]}),
    ("put(opts={'a': 'it's', 'b': 'x('y')'}, path='a')", {"opts": {"a": "it's", "b": "x('y')"}, "path": "a"}),
    ("put(lines=['it's', 'b'])", {"lines": ["it's", "b"]}),
    ('put(text="python -c "print(1)" && ls")', {"text": 'python -c "print(1)" && ls'}),
    ("put(text='a' + \"b\" 'c')", {"text": "abc"}),
    ('put({"path": "a", "lines": [1]})', {"path": "a", "lines": [1]}),
    ("put(path='a', **{'lines': [1]})", {"path": "a", "lines": [1]}),
    ("put(**{'path': 'a'}, **{}, n=None)", {"path": "a", "n": None}),
    ("now({})", {}),
]
MARKED: list[tuple[str, dict[str, Any]]] = [
    ("put(path: 'a', \"text\"='b')", {"path": "a", "text": "b"}),
    ("put(path='a' n=1)", {"path": "a", "n": 1}),
    ("put(path=“a”, text='b'  # c )\n)", {"path": "a", "text": "b"}),
    ("put(lines=[1, (2, 3])", {"lines": [1, [2, 3]]}),
    ("put(lines=[1, 2)", {"lines": [1, 2]}),
]


@pytest.mark.parametrize(
    ("name", "around", "rows"),
    [
        ("pythonic", "[%s]", PYTHON),
        ("lfm2", "<|tool_call_start|>[%s]<|tool_call_end|>", [*PYTHON, *MARKED]),
        ("olmo3", "<function_calls>\n%s\n</function_calls>", [*PYTHON, *MARKED]),
        ("hermes", "[%s]", PYTHON),
        ("pythonic", "%s", PYTHON),
    ],
)
def test_python_calls(name: str, around: str, rows: list[tuple[str, dict[str, Any]]]) -> None:
    for call, arguments in rows:
        answer = read(name, around % call)
        assert (calls_of(answer), answer.content) == ([(call.partition("(")[0], arguments)], ""), call


@pytest.mark.parametrize("name", ["pythonic", "lfm2", "hermes"])
@pytest.mark.parametrize(
    "call", ["put(f(1))", "put(1)", "put(path=a)", "put(path='a' + b)", "put({1, 2})", "put({'path': x})"]
)
def test_what_would_have_to_be_reckoned_is_text(name: str, call: str) -> None:
    text = {"lfm2": "<|tool_call_start|>[%s]<|tool_call_end|>"}.get(name, "[%s]") % call
    answer = read(name, text)
    assert (answer.tool_calls, answer.content) == ((), text)


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ("put(path='a')\nnow()", [("put", {"path": "a"}), ("now", {})], ""),
        ("now()<|eot|>", [("now", {})], ""),
        ("now() tells the time.", [], "now() tells the time."),
        ("now(), put(path='a') and so on", [], "now(), put(path='a') and so on"),
        ("now", [], "now"),
        ("nowhere(a=1)", [], "nowhere(a=1)"),
        ("Call now()", [], "Call now()"),
    ],
)
def test_a_python_call_without_brackets_is_one_if_nothing_else_is_written(
    text: str, calls: list[Call], content: str
) -> None:
    answer = read("pythonic", text)
    assert (calls_of(answer), answer.content) == (calls, content)
