"""Closing tags, keys and headers that models misspell: read where the call goes on behind them, data elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

import toolcall
from tests.toolcall.render_calls import RENDERERS, Call
from tests.toolcall.running import calls_of, read_however_cut
from toolcall.syntax import TaggedCalls

TOOLS: list[dict[str, Any]] = [
    {
        "name": "put",
        "parameters": {
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "n": {"type": "integer"},
                "o": {"type": "object"},
            }
        },
    },
    {"name": "now", "parameters": {"properties": {}}},
]
CALLS: list[Call] = [
    ("put", {"path": "a.py", "text": "上海 <b> & </parameters> x", "n": 2, "o": {"k": "</parameter1>"}}),
    ("now", {}),
    ("put", {"text": "", "path": "1"}),
]


def tags_of(name: str) -> TaggedCalls:
    bodies = (body for block in toolcall.get_format(name).blocks for body in block.bodies if not body.foreign)
    return next((body for body in bodies if isinstance(body, TaggedCalls)), INVOKE)


INVOKE = toolcall.get_format("muse_glimmer").protocol.body  # type: ignore[union-attr]
TAGGED = [
    name
    for name in sorted(RENDERERS)
    if any(isinstance(body, TaggedCalls) for block in toolcall.get_format(name).blocks for body in block.bodies[:1])
]
CLOSING = [name for name in TAGGED if tags_of(name).value_stem]
TAILS = ("/>", "1>", "", "_function>", "s>", "=path>", ' name="path">', ">>", "\n")


def read(name: str, text: str, tools: Any = TOOLS) -> toolcall.ParsedOutput:
    return read_however_cut(name, text, tools=tools)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("name", CLOSING)
def test_the_closing_tag_of_a_value(name: str, tail: str) -> None:
    tags = tags_of(name)
    calls = [CALLS[1], CALLS[2], ("put", {"path": "a b", "n": 5})] if tags.xml else CALLS  # no sections of CDATA
    text = RENDERERS[name](calls).replace(tags.value_close, tags.value_stem + tail)
    answer = read(name, text)
    assert (calls_of(answer), answer.content) == (calls, "")


@pytest.mark.parametrize("tail", [tail for tail in TAILS if tail not in ("", ">>")])
@pytest.mark.parametrize("name", [name for name in CLOSING if tags_of(name).call_stem])
def test_the_closing_tag_of_a_call(name: str, tail: str) -> None:
    tags = tags_of(name)
    text = RENDERERS[name](CALLS).replace(tags.call_close, tags.call_stem + tail)
    answer = read(name, text)
    assert (calls_of(answer), answer.content) == (CALLS, "")


@pytest.mark.parametrize("name", CLOSING)
def test_what_only_looks_like_a_closing_tag_is_data(name: str) -> None:
    tags = tags_of(name)
    words = [f"a {tags.value_stem}{tail} b" for tail in TAILS] + [f"{tags.value_stem}s>", f"x{tags.value_stem}1>."]
    for word in words:
        calls: list[Call] = [("put", {"path": word, "text": word + "\n" + word})]
        assert calls_of(read(name, RENDERERS[name](calls))) == calls, word


@pytest.mark.parametrize("name", ["qwen3_coder", "seed_oss"])
@pytest.mark.parametrize("value", ["str_replace", "ls -l > x && y", "k=v", "a > b\nc", "上海"])
def test_a_key_that_ends_at_an_equals_sign(name: str, value: str) -> None:
    calls: list[Call] = [("put", {"text": value, "path": "p"}), ("put", {"path": value})]
    text = RENDERERS[name](calls)
    for key in ("text", "path"):
        text = text.replace(f"<parameter={key}>\n", f"<parameter={key}=")
    text = text.replace("\n</parameter>", "</parameter>")
    assert calls_of(read(name, text)) == calls


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "minimax_m2", "dots", "step3", "kimi_k3"])
def test_attributes_in_any_order_and_without_quotes(name: str) -> None:
    text = RENDERERS[name](CALLS)
    label, key = ("tool", "key") if name == "kimi_k3" else ("name", "name")
    for old, new in (
        (f'{label}="put"', f'index="1" {label}="put"'),
        (f'{key}="path"', f'type="string" {key}="path"'),
        (f'{key}="text"', f'description="a = b" {key}="text" x="y"'),
        (f'{label}="now"', f"{label}=now index=2"),
        (' string="true"', ""),
    ):
        text = text.replace(old, new)
    assert calls_of(read(name, text)) == CALLS


@pytest.mark.parametrize(
    ("name", "text", "calls", "content"),
    [
        ("deepseek_v4", "Done.</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>", [], "Done."),
        (
            "deepseek_v4",
            'Ok. <tool_calls>\n<invoke name="put">\n<parameter name="path">a</parameter>\n</invoke>\n</tool_calls>',
            [("put", {"path": "a"})],
            "Ok.",
        ),
        (
            "llama3_json",
            "Ok. <tool_call>\n<function=put>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call> Bye.",
            [("put", {"path": "a"})],
            "Ok. Bye.",
        ),
        ("llama3_json", "The <tool_call> tag and <tool_calls>.", [], "The <tool_call> tag and <tool_calls>."),
        (
            "gemma4",
            '<|tool_call>call:put{text:<|"|>q(<|"|><|"|><|"|> a, b <|"|><|"|><|"|>).df()<|"|>,path:<|"|>r<|"|>}<tool_call|>',
            [("put", {"text": 'q(""" a, b """).df()', "path": "r"})],
            "",
        ),
        ("gemma4", '<|tool_call>call:put(path=<|"|>x (y)<|"|>)<tool_call|>', [("put", {"path": "x (y)"})], ""),
        ("pythonic", "[now()](http://a.b)", [], "[now()](http://a.b)"),
        ("pythonic", "See [put(path='a')](http://a.b).", [], "See [put(path='a')](http://a.b)."),
        ("pythonic", "[now()] (done)", [("now", {})], "(done)"),
        (
            "xlam",
            'Sure:\n```json\n[{"name": "put", "arguments": {"path": "a"}}]\n```\nOk?',
            [("put", {"path": "a"})],
            "Sure: Ok?",
        ),
        (
            "xlam",
            '```json\n[{"name": "nope", "arguments": {}}]\n```',
            [],
            '```json\n[{"name": "nope", "arguments": {}}]\n```',
        ),
        ("xlam", 'hm</think>\n[{"name": "put", "arguments": {"path": "a"}}]', [("put", {"path": "a"})], "hm</think>"),
        ("hermes", 'hm\n</think>\n{"name": "now", "arguments": {}}', [("now", {})], "hm\n</think>"),
        (
            "inkling",
            '<|message_model|>put<|content_invoke_tool_text|>{"path":"a"}<|end_message|>',
            [("put", {"path": "a"})],
            "",
        ),
        (
            "gpt_oss",
            ' to=functions.put<|channel|>commentary json<|message|>{"path": "a"}<|call|>',
            [("put", {"path": "a"})],
            "",
        ),
        ("gpt_oss", "commentary to=functions.now <|constrain|>json<|message|>{}<|call|>", [("now", {})], ""),
        ("gpt_oss", "final<|message|>Hi.<|return|>", [], "Hi."),
        ("gpt_oss", "final answer: to=x, analysis", [], "final answer: to=x, analysis"),
        ("gpt_oss", "<|channel|>commentary to=functions.put.json<|message|>{}<|call|>", [("put", {})], ""),
        ("muse_glimmer", " to=user<|message|>Hi.<|eom|>", [], "Hi."),
        *(
            ("llama3_json", f"<|python_start|>{call}<|python_end|>", [("put", {"path": "a"})], "")
            for call in ('{"name": "put", "parameters": {"path": "a"}}', '[put(path="a")]')
        ),
        *(
            ("mistral", f"[TOOL_CALLS]put{call}", [("put", {"path": "a"})], "")
            for call in ('(path="a")', '({"path": "a"})', '{"path": "a"}', '[ARGS]({"path": "a"})')
        ),
        *(
            ("glm45", f"<tool_call>put {attributes}</tool_call>", calls, content)
            for attributes, calls, content in (
                ('path="a" n=2', [("put", {"path": "a", "n": 2})], ""),
                ("path=a", [("put", {"path": "a"})], ""),
                ("road=a", [], "<tool_call>put road=a</tool_call>"),
            )
        ),
        *(
            (name, block, [("put", {"path": "a", "n": 2})], "")
            for name, block in (
                ("minimax_m2", '<minimax:tool_call>\n<invoke name="put" path="a" n="2"/>\n</minimax:tool_call>'),
                ("dots", '<dots_function_call>\n<invoke name="put" path="a" n="2">\n</invoke>\n</dots_function_call>'),
                ("qwen3_coder", "<tool_call>\n<function=put path='a' n=2>\n</function>\n</tool_call>"),
            )
        ),
        *(
            ("hermes", f"{fence}\n<tool_call>\n{call}\n</tool_call>\n```", [("now", {})], "")
            for fence in ("```", "```xml", "```json")
            for call in ('{"name": "now", "arguments": {}}', "<function=now>\n</function>")
        ),
        ("hermes", "```xml\n<note>\n</note>\n```", [], "```xml\n<note>\n</note>\n```"),
        *(
            ("hermes", f'<tool_call>\n{{"name": "now", "arguments": {{}}}}\n{end}', [("now", {})], "")
            for end in ("</tool_response>", "</tool>", "<tool_call>", "</tool_call>\n<tool_call>\n")
        ),
        (
            "hermes",
            '<tool_call>{"name": "put", "arguments": {"path": """""", "text": """a "b"\nc\\n"""}}</tool_call>',
            [("put", {"path": "", "text": 'a "b"\nc\n'})],
            "",
        ),
        (
            "hermes",
            '<tool_call>{"name": "put", "arguments": {"path": ""q" x", "text": ""}}</tool_call>',
            [("put", {"path": '"q" x', "text": ""})],
            "",
        ),
    ],
)
def test_leftovers(name: str, text: str, calls: list[Call], content: str) -> None:
    answer = read(name, text)
    assert (calls_of(answer), answer.content.split()) == (calls, content.split())
