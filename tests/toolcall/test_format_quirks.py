"""What each family is known to write beside its canonical form: one row each, the same for every chunking."""

from __future__ import annotations

import json
from typing import Any

import pytest

import toolcall
from tests.cases.chunking import chunkings
from tests.toolcall.running import events_of, merged

TOOLS: list[dict[str, Any]] = [
    {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}},
    {"name": "now", "parameters": {"properties": {}}},
    {
        "name": "edit",
        "parameters": {
            "properties": {
                "path": {"type": "string"},
                "text": {"type": "string"},
                "opts": {
                    "type": "object",
                    "properties": {"deep": {"type": "object", "properties": {"n": {"type": "integer"}}}},
                },
                "tags": {"type": "array", "items": {"type": "string"}},
            }
        },
    },
    {"name": "ns.do", "parameters": {"properties": {"a": {"type": "integer"}}}},
]
OSLO = ("weather", {"city": "Oslo"})
NOW = ("now", {})
NS = "]<]minimax[>["
DSML = "｜DSML｜"

ROWS: list[tuple[str, str, list[tuple[str, dict[str, Any]]], str]] = [
    # JSON in tags
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}\n</tool_call>', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {{"city": "Oslo"}}}</tool_call>', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo",}}</tool_call>', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\"}"}</tool_call>', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "now", "arguments": ""}</tool_call>', [NOW], ""),
    ("hermes", '<tool_call>{"name": "now", "arguments": []}</tool_call>', [NOW], ""),
    ("hermes", "<tool_call>{'name': 'weather', 'arguments': {'city': 'Oslo'}}</tool_call>", [OSLO], ""),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}</tool_call>',
        [OSLO],
        "",
    ),
    ("hermes", '<tool_call>{"function": "weather", "arguments": {"city": "Oslo"}}</tool_call>', [OSLO], ""),
    ("hermes", '<tool_call>{"name": "functions.weather", "arguments": {"city": "Oslo"}}</tool_call>', [OSLO], ""),
    (
        "hermes",
        '<tool_call>{"name": "weather", "x": [1, {}], "arguments": {"city": "Oslo"}, "y": null}</tool_call>',
        [OSLO],
        "",
    ),
    ("hermes", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}} ok</tool_call>!', [OSLO], " ok!"),
    ("hermes", '<tool_call>\n<tool_call>\n{"name": "now"}\n</tool_call>', [NOW], ""),
    (
        "hermes",
        '<tool_call>{"name": "nope", "arguments": {}}</tool_call> <tool_call>{"name": "now"}</tool_call>',
        [("nope", {}), NOW],
        "",
    ),
    ("hermes", '<tool_call>{"name": "now"}</tool_call></tool_call>', [NOW], ""),
    ("hermes", '<tool_call>{"name": "now"}</tool_call>.</tool_call>', [NOW], ".</tool_call>"),
    (
        "hermes",
        '<tool_call>\n```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```\n</tool_call>',
        [OSLO],
        "",
    ),
    *(
        (name, block, [], block)
        for name, block in (
            ("hermes", '<tool_call>{"name": "weather", "city": "Oslo"}</tool_call>'),
            ("mistral", '[TOOL_CALLS] [{"name": "weather", "city": "Oslo"}]'),
            ("jamba", '<tool_calls>[{"city": "Oslo", "name": "weather"}]</tool_calls>'),
        )
    ),
    # Qwen3-Coder tags
    (
        "qwen3_coder",
        "<tool_call>\n<function=edit>\n<parameter=text>\na </parameter> b\n</parameter>\n</function>\n</tool_call>",
        [("edit", {"text": "a </parameter> b"})],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=edit>\n<parameter=text>\n<parameter=x> </function>\n</parameter>\n</function>\n</tool_call>",
        [("edit", {"text": "<parameter=x> </function>"})],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        [("weather", {"city": "Oslo", "days": 2})],
        "",
    ),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</function>\n</tool_call>", [OSLO], ""),
    ("qwen3_coder", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</tool_call>", [OSLO], ""),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</tool_call>", [NOW], ""),
    (
        "qwen3_coder",
        "<tool_call>\n<function=now></function>\n<tool_call>\n<function=now></function>\n</tool_call>",
        [NOW, NOW],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call><function=edit><parameter=text>\r\nx\r\n</parameter></function></tool_call>",
        [("edit", {"text": "x"})],
        "",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=planet>\n5\n</parameter>\n</function>\n</tool_call>",
        [("weather", {"planet": "5"})],
        "",
    ),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</function>\n</seed:tool_call>",
        [OSLO],
        "",
    ),
    ("qwen3_coder", '<tool_call>\n<function=weather>\n{"city": "Oslo"}\n</function>\n</tool_call>', [OSLO], ""),
    (
        "gemma4",
        '<|tool_call>call:edit{"text": "a, }\\n", opts: {deep: "x"}}<tool_call|>',
        [("edit", {"text": "a, }\n", "opts": {"deep": "x"}})],
        "",
    ),
    # bare and python
    (
        "llama3_json",
        'I think {"name": "weather", "parameters": {"city": "Oslo"}}',
        [],
        'I think {"name": "weather", "parameters": {"city": "Oslo"}}',
    ),
    (
        "llama3_json",
        'Sure. <|python_tag|>{"name": "weather", "parameters": {"city": "Oslo"}}<|eom_id|>',
        [OSLO],
        "Sure.",
    ),
    ("llama3_json", "<|python_tag|>print(1)", [], "<|python_tag|>print(1)"),
    ("pythonic", "Sure: [weather(city='Oslo')] and [1, 2] [x]", [OSLO], "Sure:  and [1, 2] [x]"),
    ("pythonic", "[weather('Oslo')]", [], "[weather('Oslo')]"),
    ("pythonic", "[weather(city=Oslo)]", [], "[weather(city=Oslo)]"),
    ("pythonic", "[weather(city='Oslo',), now(),]", [OSLO, NOW], ""),
    (
        "pythonic",
        "[edit(text='''a'b\n\"c\"''', tags=('x', \"y\"))]",
        [("edit", {"text": 'a\'b\n"c"', "tags": ["x", "y"]})],
        "",
    ),
    ("pythonic", r"[edit(text='\x41\u00e9\U0001F680\101\\\'\a')]", [("edit", {"text": "Aé🚀A\\'\x07"})], ""),
    ("pythonic", "[ns.do(a=-1)]", [("ns.do", {"a": -1})], ""),
    *(
        ("pythonic", f"[edit(text={literal}, tags=[{literal}])]", [("edit", {"text": text, "tags": [text]})], "")
        for literal, text in (
            (r"r'\d+\n\u00e9'", r"\d+\n\u00e9"),
            (r"""R"a\"b\\" """, r"a\"b\\"),
            (
                r"""r'''a\'b
c'''""",
                "a\\'b\nc",
            ),
            (r"u'\n'", "\n"),
        )
    ),
    ("pythonic", "[edit(text=r)]", [], "[edit(text=r)]"),
    ("olmo3", '<function_calls>\nweather(city="Oslo")\nnow()\n</function_calls>ok', [OSLO, NOW], "ok"),
    ("lfm2", "<|tool_call_start|>weather(city='Oslo')<|tool_call_end|>", [OSLO], ""),
    # Mistral
    ("mistral", '[TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Oslo"}</s>', [OSLO], ""),
    ("mistral", "[TOOL_CALLS]now{}now{}", [NOW, NOW], ""),
    ("mistral", "[TOOL_CALLS]now[ARGS]null", [NOW], ""),
    ("mistral", 'Ok.[TOOL_CALLS]{"name": "now", "arguments": {}}', [NOW], "Ok."),
    ("mistral", "[TOOL_CALLS] is my marker", [], "[TOOL_CALLS] is my marker"),
    # DeepSeek
    (
        "deepseek_v3",
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>',
        [OSLO],
        "",
    ),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n{"city": "Oslo"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [OSLO],
        "",
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>',
        [OSLO],
        "",
    ),
    (
        "deepseek_v31",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [NOW],
        "",
    ),
    (
        "deepseek_v32",
        f'Ok.\n\n<{DSML}function_calls>\n<{DSML}invoke name="now"/>\n</{DSML}function_calls>',
        [NOW],
        "Ok.",
    ),
    (
        "deepseek_v32",
        f'<{DSML}function_calls>\n<{DSML}invoke name="weather">\n{{"city": "Oslo"}}\n</{DSML}invoke>\n</{DSML}function_calls>',
        [OSLO],
        "",
    ),
    (
        "deepseek_v4",
        f'<{DSML}tool_calls>\n<{DSML}invoke name="ns.do">\n<{DSML}parameter name="a" string="false">{{"x": [1]}}</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}tool_calls>',
        [("ns.do", {"a": {"x": [1]}})],
        "",
    ),
    (
        "deepseek_v32",
        f'<{DSML}function_calls><{DSML}invoke name="ns.do"><{DSML}parameter name="a" string="true">5</{DSML}parameter></{DSML}invoke></{DSML}function_calls>',
        [("ns.do", {"a": "5"})],
        "",
    ),
    *(
        ("deepseek_v31", f"<｜tool▁call▁begin｜>now<｜tool▁sep｜>{none}<｜tool▁call▁end｜>", [NOW], "")
        for none in ("", "null", '""', '"{}"', "{}")
    ),
    # GLM, Hunyuan
    ("glm45", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>', [OSLO], ""),
    ("glm45", "<tool_call>now\n</tool_call>", [NOW], ""),
    ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\\n<arg_value>Oslo</arg_value>\n</tool_call>", [OSLO], ""),
    (
        "glm45",
        "<tool_call>edit<arg_key>text</arg_key><arg_value>\n x </arg_value> y\n</arg_value></tool_call>",
        [("edit", {"text": "\n x </arg_value> y\n"})],
        "",
    ),
    ("glm45", "<tool_call> is a tag", [], "<tool_call> is a tag"),
    ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n", [OSLO], ""),
    (
        "hunyuan",
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Oslo</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
        [OSLO],
        "",
    ),
    # Kimi
    *(
        (
            "kimi_k2",
            f'<|tool_call_begin|>{name}<|tool_call_argument_begin|>{{"city": "Oslo"}}<|tool_call_end|>',
            [(called, {"city": "Oslo"})],
            "",
        )
        for name, called in (
            ("0", "weather"),
            ("call_a1b2", "weather"),
            ("functions.:3", "weather"),
            ("functions.forecast:0", "forecast"),
            ("functions.forecast", "forecast"),
            ("forecast:0", "forecast"),
            ("ns.get-forecast:12", "ns.get-forecast"),
        )
    ),
    (
        "kimi_k2",
        '<|tool_call_begin|>functions.ns.do:12<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>',
        [("ns.do", {"a": 1})],
        "",
    ),
    (
        "kimi_k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>3<|tool_call_argument_begin|>{"city": "Oslo"}<|tool_call_end|><|tool_calls_section_end|>',
        [OSLO],
        "",
    ),
    (
        "kimi_k2",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>bye",
        [NOW],
        "bye",
    ),
    (
        "kimi_k3",
        '<|open|>response<|sep|>Hi.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="edit" index="1"<|sep|><|open|>argument key="a&amp;&quot;b" type="number"<|sep|>1.5<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
        [("edit", {'a&"b': 1.5})],
        "Hi.",
    ),
    # invoke
    (
        "minimax_m2",
        "<minimax:tool_call>\n<invoke name='weather'>\n<parameter name=city>Oslo</parameter>\n</invoke>\n</minimax:tool_call>ok",
        [OSLO],
        "ok",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Oslo</parameter>\n</invoke>',
        [OSLO],
        "",
    ),
    (
        "minimax_m3",
        f'{NS}<tool_call>{NS}<invoke name="edit">{NS}<opts>{NS}<deep>{NS}<n>5{NS}</n>{NS}</deep>{NS}</opts>{NS}<tags>{NS}<item>a{NS}</item>{NS}<item>5{NS}</item>{NS}</tags>{NS}</invoke>{NS}</tool_call>',
        [("edit", {"opts": {"deep": {"n": 5}}, "tags": ["a", "5"]})],
        "",
    ),
    (
        "dots",
        '<dots_function_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</dots_function_call>',
        [OSLO],
        "",
    ),
    (
        "minicpm5",
        'First <function name="edit"><param name="text"><![CDATA[a </param> & <b>]]></param></function> last',
        [("edit", {"text": "a </param> & <b>"})],
        "First  last",
    ),
    (
        "step3",
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="ns.do"><steptml:parameter name="a">7</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>',
        [("ns.do", {"a": 7})],
        "",
    ),
    # harmony
    ("gpt_oss", '<|channel|>commentary to=functions.weather code<|message|>{"city": "Oslo"}<|call|>', [OSLO], ""),
    ("gpt_oss", "<|channel|>commentary to=functions.now<|message|><|call|>", [NOW], ""),
    (
        "gpt_oss",
        "<|channel|>commentary to=functions.now<|message|>plain<|call|>",
        [],
        "<|channel|>commentary to=functions.now<|message|>plain<|call|>",
    ),
    (
        "gpt_oss",
        "<|channel|>commentary to=functions.now<|message|>{}<|call|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>",
        [NOW, NOW],
        "",
    ),
    # JSON between markers of their own
    (
        "internlm",
        '<|action_start|><|plugin|>{"name": "weather", "parameters": {"city": "Oslo"}}<|action_end|>\nok',
        [OSLO],
        "ok",
    ),
    ("apertus", 'Hm <|tools_prefix|>[{"weather": {"city": "Oslo"}}, {"now": {}}]', [OSLO, NOW], "Hm"),
    (
        "cohere_command4",
        '<|START_RESPONSE|>Hi<|END_RESPONSE|><|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Oslo"}}\n]<|END_ACTION|>',
        [OSLO],
        "Hi",
    ),
    (
        "gigachat3",
        'Ok.<|message_sep|>\n\nfunction call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Oslo"}}</s>',
        [OSLO],
        "Ok.",
    ),
    (
        "gemma4",
        '<|tool_call>call:edit{opts:{deep:{n:5,w:<|"|>a,b}<|"|>}},tags:[<|"|>x<|"|>,<|"|>y<|"|>]}<tool_call|>',
        [("edit", {"opts": {"deep": {"n": 5, "w": "a,b}"}}, "tags": ["x", "y"]})],
        "",
    ),
    ("gemma4", "<|tool_call>call:weather{city:Oslo}<tool_call|>", [OSLO], ""),
    (
        "functiongemma",
        "<start_function_call>call:weather{city:<escape>12<escape>,days:<escape>3<escape>}<end_function_call>",
        [("weather", {"city": "12", "days": 3})],
        "",
    ),
    ("functiongemma", "<start_function_call>call:now{}", [NOW], ""),
    (
        "inkling",
        '<|message_model|>weather<|content_invoke_tool_json|>{"name":"weather","args":{"city":"Oslo"}}<|end_message|>',
        [OSLO],
        "",
    ),
    (
        "muse_glimmer",
        '<|start|>assistant to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>Hi<|eom|><|start|>assistant to=weather<|message|><atem:function_calls><atem:invoke name="weather"><atem:parameter name="city">Oslo</atem:parameter></atem:invoke></atem:function_calls><|eom|>',
        [OSLO],
        "Hi",
    ),
    ("granite", '<tool_call>[{"name": "weather", "arguments": {"city": "Oslo"}}]', [OSLO], ""),
    ("granite", '[{"name": "weather", "arguments": {"city": "Oslo"}}]', [OSLO], ""),
    (
        "ernie45",
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<response>\nok\n</response>',
        [NOW],
        "ok",
    ),
    (
        "phi4_mini_json",
        'functools[{"name": "edit", "arguments": {"tags": ["a", "]"]}}]',
        [("edit", {"tags": ["a", "]"]})],
        "",
    ),
    ("phi4_mini_json", "Use functools for that.", [], "Use functools for that."),
    ("xlam", '[TOOL_CALLS][{"name": "now", "arguments": {}}]', [NOW], ""),
]


@pytest.mark.parametrize(("name", "text", "calls", "content"), ROWS, ids=[f"{n}-{i}" for i, (n, *_) in enumerate(ROWS)])
def test_quirk(name: str, text: str, calls: list[tuple[str, dict[str, Any]]], content: str) -> None:
    whole = events_of(name, [text], tools=TOOLS)
    answer = toolcall.fold(whole)
    assert [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == calls
    assert answer.content.split() == content.split() if calls else answer.content == content
    for label, pieces in chunkings(text):
        assert merged(events_of(name, pieces, tools=TOOLS)) == merged(whole), label


@pytest.mark.parametrize(("name", "text", "calls", "content"), [r for r in ROWS if r[2]], ids=lambda v: None)
def test_quirks_are_the_same_behind_text(name: str, text: str, calls: list[Any], content: str) -> None:
    if text.startswith(("[{", "<|channel|>", "<|start|>")):
        pytest.skip("stands only at the beginning")
    answer = toolcall.fold(events_of(name, list("Well, 1 < 2.\n" + text), tools=TOOLS))
    assert [(c.name, json.loads(c.arguments)) for c in answer.tool_calls] == calls
    assert answer.content.split() == ["Well,", "1", "<", "2.", *content.split()]


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        ("hermes", r'<tool_call>{"name": "edit", "arguments": {"text": "a\u00e9\n"}}</tool_call>'),
        ("pythonic", r"[edit(text='a\u00e9\n', path='''x''y''')]"),
        ("gemma4", '<|tool_call>call:edit{text:<|"|>a<b<|"|>}<tool_call|>'),
        (
            "qwen3_coder",
            "<tool_call>\n<function=edit>\n<parameter=text>\na\n</parameter\n</parameter>\n</function>\n</tool_call>",
        ),
        ("glm45", "<tool_call>edit\n<arg_key>text</arg_key>\n<arg_value>a<b</arg_value>\n</tool_call>"),
    ],
)
def test_the_arguments_of_a_call_that_is_cut_off_are_a_prefix_of_the_whole(fmt: str, text: str) -> None:
    def sent(size: int) -> str:
        events = events_of(fmt, text[:size], finish="length", tools=TOOLS)
        return "".join(e.fragment for e in events if isinstance(e, toolcall.ToolCallArguments))

    whole = sent(len(text))
    assert whole
    assert [n for n in range(len(text)) if not whole.startswith(sent(n))] == []
