"""Marks that models misspell, forget, double or borrow, family by family: the call, and nothing of them as text."""

from __future__ import annotations

from typing import Any

import pytest

import toolcall
from tests.toolcall.render_calls import RENDERERS, Call
from tests.toolcall.running import calls_of, events_of, merged, read_however_cut

TOOLS: list[dict[str, Any]] = [
    {"name": "put", "parameters": {"properties": {"path": {"type": "string"}, "n": {"type": "integer"}}}},
    {"name": "now", "parameters": {"properties": {}}},
]
CALLS: list[Call] = [("put", {"path": "a <b> </parameter> c", "n": 2}), ("now", {}), ("put", {"path": "d"})]
PUT: list[Call] = [("put", {"path": "a"})]
DSML = "｜DSML｜"


def read(name: str, text: str, finish: str = "stop", **options: Any) -> toolcall.ParsedOutput:
    return read_however_cut(name, text, finish, tools=TOOLS, **options)


@pytest.mark.parametrize("wrapper", ["toolcalls", "tool_call", "functioncalls", "function_call", "tool_use", "calls"])
@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4"])
def test_the_wrapper_of_dsml(name: str, wrapper: str) -> None:
    own = {"deepseek_v32": "function_calls", "deepseek_v4": "tool_calls"}[name]
    text = RENDERERS[name](CALLS)
    for spelt in (text.replace(own, wrapper), text.replace(f"<{DSML}{own}", f"<{DSML}{wrapper}")):
        answer = read(name, "Ok. " + spelt)
        assert (calls_of(answer), answer.content) == (CALLS, "Ok.")


@pytest.mark.parametrize("mark", ["｜｜DSML｜｜", "|DSML|", "||DSML||", " | DSML | ", "| DSML | ", "｜ DSML ｜"])
def test_the_mark_of_dsml(mark: str) -> None:
    answer = read("deepseek_v4", RENDERERS["deepseek_v4"](CALLS).replace(DSML, mark))
    assert (calls_of(answer), answer.content) == (CALLS, "")


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("deepseek_v32", DSML), ("deepseek_v4", DSML), ("step3", "steptml:"), ("muse_glimmer", "atem:")],
)
@pytest.mark.parametrize(
    "forgotten",
    [
        ["</%sparameter"],
        ["<%sparameter", "</%sparameter"],
        ["</%sinvoke"],
        ["<%sinvoke", "</%sinvoke"],
        ["</%sparameter", "</%sinvoke"],
    ],
)
def test_a_prefix_that_is_forgotten(name: str, prefix: str, forgotten: list[str]) -> None:
    calls = CALLS[1:]
    text = RENDERERS[name](calls)
    for tag in forgotten:
        text = text.replace(tag % prefix, tag % "")
    answer = read(name, text)
    assert (calls_of(answer), answer.content) == (calls, "")


@pytest.mark.parametrize("name", ["deepseek_v32", "deepseek_v4", "step3", "muse_glimmer"])
def test_tags_without_the_prefix_are_data_in_values_that_have_their_own_end(name: str) -> None:
    for word in (
        "x</parameter>",
        "</parameter>\n</invoke>",
        '<parameter name="n">1</parameter>',
        "</invoke>",
        "a</parameter>\n",
    ):
        calls: list[Call] = [("put", {"path": word, "n": 1}), ("put", {"n": 2, "path": word})]
        assert calls_of(read(name, RENDERERS[name](calls))) == calls, word


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (
            f'<{DSML}tool_calls\n<{DSML}invoke name="put">\n<{DSML}parameter name="path" string="true">a</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}tool_calls>',
            "",
        ),
        (
            f'<{DSML}tool_calls>\n<{DSML}invoke="put">\n<{DSML}parameter="path" string="true">a</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}tool_calls>',
            "",
        ),
        (f'Ok. <{DSML}invoke="put">\n<{DSML}parameter name="path">a</{DSML}parameter>\n</{DSML}invoke>', "Ok."),
    ],
)
def test_headers_of_dsml(text: str, content: str) -> None:
    answer = read("deepseek_v4", text)
    assert (calls_of(answer), answer.content) == (PUT, content)


@pytest.mark.parametrize(
    ("wrapper", "closer"),
    [
        ("<toolcall>", "</toolcall>"),
        ("<functioncall>", "</functioncall>"),
        ("<tool_use>", "</tool_use>"),
        ("<tool_code>", "</tool_code>"),
        ("<tool>", "</tool>"),
        ("[TOOL_CALL]", "[/TOOL_CALL]"),
        ("[TOOL_REQUEST]", "[END_TOOL_REQUEST]"),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json", "glm45"])
def test_wrappers_of_no_family(name: str, wrapper: str, closer: str) -> None:
    call = f'{wrapper}\n{{"name": "put", "arguments": {{"path": "a"}}}}\n{closer}'
    answer = read(name, call)
    assert (calls_of(answer), answer.content) == (PUT, "")
    assert all(found.rescued for found in answer.tool_calls)
    for text in (
        f"Write {call}",
        f'{wrapper}\n{{"name": "other", "arguments": {{}}}}\n{closer}',
        f"{wrapper}\ntext\n{closer}",
    ):
        answer = read(name, text)
        assert (answer.tool_calls, answer.content) == ((), text)


@pytest.mark.parametrize("closer", ["</tool_calls>", "</toolcall>", "</tool_call>\n</tool_calls>"])
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_another_closer(name: str, closer: str) -> None:
    text = RENDERERS[name](PUT).replace("</tool_call>", closer) + "\nDone."
    answer = read(name, text)
    assert (calls_of(answer), answer.content.strip()) == (PUT, "Done.")


@pytest.mark.parametrize(
    "header",
    [
        'put{"path": "a"}></function>',
        'put{"path": "a"}</function>',
        'put({"path": "a"})</function>',
        'put(path="a")</function>',
        'put{"path": "a"}',
    ],
)
@pytest.mark.parametrize("name", ["llama3_json", "hermes", "qwen3_coder"])
def test_arguments_in_the_header_of_a_function(name: str, header: str) -> None:
    answer = read(name, f"<function={header}")
    assert (calls_of(answer), answer.content) == (PUT, "")


KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>%s<|tool_call_argument_begin|>%s<|tool_call_end|><|tool_calls_section_end|>"


@pytest.mark.parametrize("call_id", ["functions.put.0", "put.12", "functions_put_1", "tool.put:0", "default_api.put:3"])
def test_ids_of_kimi(call_id: str) -> None:
    assert calls_of(read("kimi_k2", KIMI % (call_id, '{"path": "a"}'))) == PUT


@pytest.mark.parametrize(
    "arguments",
    ['<|tool_call_argument_begin|>{"path": "a"}', '```json\n{"path": "a"}\n```', '\n```\n{"path": "a"}```\n'],
)
def test_arguments_of_kimi(arguments: str) -> None:
    answer = read("kimi_k2", KIMI % ("functions.put:0", arguments) + "Done.")
    assert (calls_of(answer), answer.content) == (PUT, "Done.")


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        ('[TOOL_CALLS]put[ARGS]{"path": "a"}[/TOOL_CALLS]', PUT, ""),
        ('[TOOL_CALLS][{"name": "put", "arguments": {"path": "a"}}][/TOOL_CALLS] Ok.', PUT, "Ok."),
        ('[TOOL_CALLS]put[ARGS]```json\n{"path": "a"}\n```', PUT, ""),
        ('[TOOL_CALLS]default_api.put[ARGS]{"path": "a"}[TOOL_CALLS]tools.now{}', [*PUT, ("now", {})], ""),
        ("The mark [/TOOL_CALLS] ends it.", [], "The mark [/TOOL_CALLS] ends it."),
    ],
)
def test_mistral(text: str, calls: list[Call], content: str) -> None:
    answer = read("mistral", text)
    assert (calls_of(answer), answer.content.strip()) == (calls, content)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ('<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "put", "parameters": {"path": "a"}}', PUT),
        ('{"name": "now", "parameters": {}}<|start_header_id|>assistant<|end_header_id|>\n\n', [("now", {})]),
    ],
)
def test_the_header_of_llama_once_more(text: str, calls: list[Call]) -> None:
    answer = read("llama3_json", text)
    assert (calls_of(answer), answer.content) == (calls, "")


def test_hunyuan_with_an_object() -> None:
    text = '<tool_calls>\n<tool_call>put<tool_sep>\n{"path": "a"}\n</tool_call>\n</tool_calls>'
    assert calls_of(read("hunyuan", text)) == PUT


START = "<|start|>assistant"
BODY = '<|message|>{"path": "a"}<|call|>'


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary <|constrain|>functions.put",
        "<|channel|>functions.put",
        "<|channel|>commentary to=functions. put",
        "<|start|>assistant to=functions. put<|channel|>commentary",
        "<|channel|>commentary to=tools.put",
    ],
)
def test_recipients_of_harmony(header: str) -> None:
    answer = read("gpt_oss", header + BODY)
    assert (calls_of(answer), answer.content) == (PUT, "")


def test_a_harmony_header_without_its_end() -> None:
    header = "<|channel|>commentary to=functions.put <|constrain|>json"
    assert calls_of(read("gpt_oss", header + '{"path": "a"}<|call|>')) == PUT
    for text in ('<|channel|>commentary json{"path": "a"}<|call|>', "<|start|>user {a}<|end|>"):
        answer = read("gpt_oss", text)
        assert (answer.tool_calls, answer.content) == ((), text)
    assert read("gpt_oss", header + '{"path": "a', "length").content == ""


@pytest.mark.parametrize("free", ["I will call.", "\nI {will} call:\n", " to do"])
def test_text_between_two_messages_of_harmony_is_text(free: str) -> None:
    thought = "<|channel|>analysis<|message|>hm<|end|>"
    call = START + "<|channel|>commentary to=functions.put <|constrain|>json"
    answer = read("gpt_oss", thought + free + call + BODY, reasoning="gpt_oss")
    assert (calls_of(answer), answer.content.strip(), answer.reasoning) == (PUT, free.strip(), "hm")
    answer = read("gpt_oss", thought + free + call + "<|message|>text<|call|>", reasoning="gpt_oss")
    assert (answer.tool_calls, answer.content.strip()) == ((), (free + call + "<|message|>text<|call|>").strip())
    answer = read("gpt_oss", thought + free + START + "<|channel|>final<|message|>Hi.<|return|>", reasoning="gpt_oss")
    assert answer.content.split() == [*free.split(), "Hi."]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "minimax_m2", "minicpm5"])
@pytest.mark.parametrize("before", ["`", "Write `", "(`", "Say:\n`"])
def test_a_tag_at_the_beginning_of_inline_code_is_spoken_of(name: str, before: str) -> None:
    tag = {"minicpm5": '<function name="now"></function>', "minimax_m2": '<invoke name="now"></invoke>'}
    call = tag.get(name, "<function=now></function>")
    text = f"{before}{call}` for the time."
    answer = read(name, text)
    assert (answer.tool_calls, answer.content) == ((), text)
    for apart in (f"Use `f`. {call}", f"Use `f`\n{call}", f"Ok:\n```xml\n{call}\n```", f"x`{call}"):
        assert calls_of(read(name, apart)) == [("now", {})], apart
    assert calls_of(read(name, f"Use ` {call}{call}")) == [("now", {})] * 2


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_openers_one_behind_another_are_the_same_however_they_are_cut(name: str) -> None:
    fmt = toolcall.get_format(name)
    openers = {word for block in (*fmt.blocks, *fmt.bare) for word in (block.opener, *block.inner) if len(word) > 1}
    for opener in sorted(openers):
        for count in range(1, 6):
            for finish in ("stop", "length"):
                whole = merged(events_of(name, [opener * count], finish, tools=TOOLS))
                for size in (1, 3, len(opener)):
                    text = opener * count
                    pieces = [text[at : at + size] for at in range(0, len(text), size)]
                    assert merged(events_of(name, pieces, finish, tools=TOOLS)) == whole, (opener, count, finish, size)


@pytest.mark.parametrize("around", ["parameters", "arguments"])
@pytest.mark.parametrize(
    ("name", "head", "tail"),
    [
        ("qwen3_coder", "<tool_call>\n<function=put>\n", "\n</function>\n</tool_call>"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="put">\n', "\n</invoke>\n</minimax:tool_call>"),
    ],
)
def test_tags_around_all_the_arguments(name: str, head: str, tail: str, around: str) -> None:
    two = {
        "qwen3_coder": "<parameter=path>\na\n</parameter>\n<parameter=n>\n2\n</parameter>",
        "minimax_m2": '<parameter name="path">a</parameter>\n<parameter name="n">2</parameter>',
    }[name]
    for inner in (two, '{"path": "a", "n": 2}'):
        answer = read(name, f"{head}<{around}>\n{inner}\n</{around}>{tail}")
        assert (calls_of(answer), answer.content) == ([("put", {"path": "a", "n": 2})], "")
    word = f"<{around}>x</{around}>\n</{around}>"
    calls: list[Call] = [("put", {"path": word, "n": 1})]
    assert calls_of(read(name, RENDERERS[name](calls))) == calls


@pytest.mark.parametrize(
    ("members", "arguments"),
    [
        ('{path:<|"|>a<|"|>,x:[1,{y:<|"|>b<|"|>}}', {"path": "a", "x": [1, {"y": "b"}]}),
        ('{x:{y:[<|"|>b<|"|>,},path:<|"|>a<|"|>}', {"x": {"y": ["b"]}, "path": "a"}),
        ('{x:[{y:1],path:<|"|>a<|"|>}', {"x": [{"y": 1}], "path": "a"}),
        ('{path:<|"|>a<|"|>]', {"path": "a"}),
    ],
)
def test_brackets_of_gemma_that_are_missing(members: str, arguments: dict[str, Any]) -> None:
    answer = read("gemma4", f"<|tool_call>call:put{members}<tool_call|>Ok.")
    assert (calls_of(answer), answer.content) == ([("put", arguments)], "Ok.")
