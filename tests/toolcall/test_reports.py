"""Kinds of answers that field reports tell of, family by family: what a user would want, however the text was cut."""

from __future__ import annotations

from typing import Any

import pytest

import toolcall
from tests.toolcall.render_calls import RENDERERS, Call
from tests.toolcall.running import calls_of, read_however_cut

TOOLS: list[dict[str, Any]] = [
    {
        "name": "put",
        "parameters": {
            "properties": {
                "path": {"type": "string"},
                "n": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "opts": {"type": "object"},
            }
        },
    },
    {"name": "now", "parameters": {"properties": {}}},
    {"name": "get-it", "parameters": {"properties": {"n": {"type": "integer"}}}},
    {"name": "Ns.Do", "parameters": {"properties": {"n": {"type": "integer"}}}},
]
PUT: Call = ("put", {"path": "a"})
NOW: Call = ("now", {})
JSON = '{"name": "put", "arguments": {"path": "a"}}'


def read(name: str, text: str, finish: str = "stop", **options: Any) -> toolcall.ParsedOutput:
    return read_however_cut(name, text, finish, tools=options.pop("tools", TOOLS), **options)


def check(name: str, text: str, calls: list[Call], content: str = "") -> None:
    answer = read(name, text)
    assert (calls_of(answer), answer.content.split()) == (calls, content.split())


@pytest.mark.parametrize("name", ["glm45", "hunyuan"])
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("</arg_key>", "</arg_value>"),
        ("</arg_value>", "</arg_key>"),
        ("<arg_value>", "<arg_value><arg_value>"),
        ("<arg_value>", "<arg_value>\n<arg_value>"),
    ],
)
def test_tags_of_keys_and_values_that_are_taken_for_one_another(name: str, right: str, wrong: str) -> None:
    calls: list[Call] = [("put", {"path": "a b", "n": 2}), NOW, PUT]
    text = RENDERERS[name](calls)
    check(name, text.replace(right, wrong), calls)
    check(name, text.replace(right, wrong, 1), calls)


@pytest.mark.parametrize("word", ["</arg_key>", "x</arg_key>y", "<arg_value>", "a <arg_value> b", "</arg_key> "])
@pytest.mark.parametrize("name", ["glm45", "hunyuan"])
def test_the_same_tags_in_a_value_are_data(name: str, word: str) -> None:
    for value in (f"a {word} b", f"a{word}\nb"):
        calls: list[Call] = [("put", {"path": value, "n": 2}), ("put", {"path": value})]
        check(name, RENDERERS[name](calls), calls)


@pytest.mark.parametrize(
    ("name", "text", "calls", "content"),
    [
        (
            "kimi_k2",
            "<|tool_calls_section_begin|>I call it. <|tool_call_begin|>functions.put:0<|tool_call_argument_begin|>"
            '{"path": "a"}<|tool_call_end|><|tool_calls_section_end|>',
            [PUT],
            "I call it.",
        ),
        ("kimi_k2", "<|tool_calls_section_begin|>No call.<|tool_calls_section_end|>", [], "No call."),
        ("deepseek_v3", "<｜tool▁calls▁begin｜>No call.<｜tool▁calls▁end｜>", [], "No call."),
        ("deepseek_v31", "Hm<｜tool▁calls▁begin｜>put it there<｜tool▁calls▁end｜>", [], "Hmput it there"),
        ("inkling", "<|message_model|>Hello there.<|end_message|>", [], "Hello there."),
    ],
)
def test_special_tokens_around_text_are_no_content(name: str, text: str, calls: list[Call], content: str) -> None:
    check(name, text, calls, content)


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(
    "value", ['f"x{y}"', 'f"{y}"', "f'a b{y!r} c'", '"a" f"b{y}"', 'f"""x\n{y}"""', 'f"{{"', 'rf"\\d{y}"', 'f"}"']
)
def test_an_expression_in_a_string_is_no_call_wherever_the_text_is_cut(value: str, finish: str) -> None:
    for name, text in (
        ("pythonic", f'[put(path="a", n={value})]'),
        ("lfm2", f"<|tool_call_start|>[put(tags=[{value}])]<|tool_call_end|>"),
    ):
        assert not read(name, text, finish).tool_calls


@pytest.mark.parametrize(
    ("written", "meant"),
    [("get_it", "get-it"), ("Get-It", "get-it"), ("GET_IT", "get-it"), ("ns.do", "Ns.Do"), ("ns_do", "Ns.Do")],
)
@pytest.mark.parametrize("name", sorted(set(RENDERERS) - {"pythonic", "minicpm5", "llama3_json", "xlam"}))
def test_a_name_that_differs_in_case_or_separators(name: str, written: str, meant: str) -> None:
    check(name, RENDERERS[name]([(written, {"n": 5})]), [(meant, {"n": 5})])


def test_a_name_that_may_mean_two_tools_or_one_that_is_refused_is_left() -> None:
    from toolcall.schema import ToolSet

    text = '<tool_call>{"name": "get_it", "arguments": {"n": 1}}</tool_call>'
    both = [{"name": "get-it"}, {"name": "Get_It"}]
    assert calls_of(read("hermes", text, tools=both)) == [("get_it", {"n": 1})]
    assert calls_of(read("hermes", text, tools=ToolSet([{"name": "get-it"}], refused=["get_it"]))) == []
    assert calls_of(read("hermes", text, tools=[{"name": "get-it"}, {"name": "get_it"}])) == [("get_it", {"n": 1})]
    for bare in ('{"name": "get_it", "arguments": {"n": 1}}', "[get_it(n=1)]", "<function=get_it>{}</function>"):
        assert read("hermes", bare).content == bare


@pytest.mark.parametrize("between", [",\n", "; ", ";", "\n", " "])
def test_calls_in_python_without_brackets(between: str) -> None:
    check("pythonic", between.join(['put(path="a")', "now()"]), [PUT, NOW])
    for more in ("and so on", "1", "print", "x = 1"):
        text = between.join(['put(path="a")', more])
        assert read("pythonic", text).content == text


@pytest.mark.parametrize(
    ("opener", "closer"),
    [
        ("<TOOL_CALL>", "</TOOL_CALL>"),
        ("<Tool_Call>", "</Tool_Call>"),
        ("<ToolCall>", "</ToolCall>"),
        ("<tool-call>", "</tool-call>"),
        ("<tool call>", "</tool call>"),
        ("<TOOL_CALL>", "</tool_call>"),
        ("<tool_call>", "</TOOL_CALL>"),
    ],
)
@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "granite", "ernie45", "llama3_json", "minimax_m2"])
def test_a_wrapper_that_is_spelt_otherwise(name: str, opener: str, closer: str) -> None:
    for call in (JSON, "<function=put>\n<parameter=path>\na\n</parameter>\n</function>"):
        block = f"{opener}\n{call}\n{closer}"
        check(name, block, [PUT])
        check(name, f"{block}\n{block}", [PUT, PUT])
    for text in (f"{opener}\nno call\n{closer}", f"Write {opener} and {closer}.", f"{opener}{closer}"):
        assert read(name, text).content == text


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "glm45", "granite", "ernie45"])
@pytest.mark.parametrize("opener", ["<TOOL_CALL>", "<tool-call>"])
def test_the_same_behind_text_where_the_wrapper_is_the_familys_own(name: str, opener: str) -> None:
    block = f"{opener}\n{JSON}\n{opener.replace('<', '</')}"
    check(name, f"Let me see.\n{block}\nOk.", [PUT], "Let me see. Ok.")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ('{"tags": ["x", "path": "a"}', {"tags": ["x"], "path": "a"}),
        ('{"tags": ["x", "y", "path": "a", "n": 1}', {"tags": ["x", "y"], "path": "a", "n": 1}),
        ('{"tags": ["x" , "opts" : {"k": ["v"]}}', {"tags": ["x"], "opts": {"k": ["v"]}}),
        ('{"opts": {"k": ["v", "l": 1}, "path": "a"}', {"opts": {"k": ["v"], "l": 1}, "path": "a"}),
        ('{"opts": [{"k": 1}, "path": "a"}', {"opts": [{"k": 1}], "path": "a"}),
        ('{"tags": ["x", "y: z", "\\"q\\": 1", ""], "path": "a"}', {"tags": ["x", "y: z", '"q": 1', ""], "path": "a"}),
        ('{"tags": ["x","say "hi" to","é\xa0\u2028e"]}', {"tags": ["x", 'say "hi" to', "é\xa0\u2028e"]}),
        ('{"tags": [["x", "y"], ["z"]]}', {"tags": [["x", "y"], ["z"]]}),
    ],
)
def test_a_list_whose_bracket_is_missing_in_front_of_the_next_key(arguments: str, wanted: dict[str, Any]) -> None:
    call: Call = ("put", wanted)
    check("hermes", f'<tool_call>\n{{"name": "put", "arguments": {arguments}}}\n</tool_call>', [call])
    check("mistral", f"[TOOL_CALLS]put[ARGS]{arguments}", [call])
    check("gpt_oss", f"<|channel|>commentary to=functions.put<|message|>{arguments}<|call|>", [call])


GEMMA = ("<|tool_call>", '<|"|>', "<tool_call|>"), ("<start_function_call>", "<escape>", "<end_function_call>")


@pytest.mark.parametrize("marks", GEMMA, ids=["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ("path:Qa b", {"path": "a b"}),
        ("path:Qa {b}", {"path": "a {b}"}),
        ("path:Qa,n:2", {"path": "a", "n": 2}),
        ("path:Qa,b:2", {"path": "a,b:2"}),
        ("n:2,path:Qa, n:2", {"n": 2, "path": "a, n:2"}),
        ("tags:[QxQ,Qy", {"tags": ["x", "y"]}),
        ("tags:[QxQ,Qy]", {"tags": ["x", "y"]}),
        ("opts:{k:Qv},n:2", {"opts": {"k": "v},n:2"}}),
        ("opts:{k:Qv}", {"opts": {"k": "v"}}),
        ("path:aQ", {"path": "a"}),
        ("path:Paris, FranceQ,n:5", {"path": "Paris, France", "n": 5}),
        ("tags:[xQ,QyQ]", {"tags": ["x", "y"]}),
        ("opts:{k:vQ},path:QbQ", {"opts": {"k": "v"}, "path": "b"}),
    ],
)
def test_one_mark_of_a_string_is_missing(marks: tuple[str, str, str], arguments: str, wanted: dict[str, Any]) -> None:
    opener, quote, closer = marks
    name = "gemma4" if opener == "<|tool_call>" else "functiongemma"
    block = f"{opener}call:put{{{arguments.replace('Q', quote)}}}{closer}"
    other = f"{opener}call:put{{path:{quote}a{quote}}}{closer}"
    call: Call = ("put", wanted)
    check(name, block, [call])
    check(name, f"Hm. {block}", [call], "Hm.")
    check(name, f"{block} Ok.", [call], "Ok.")
    check(name, f"{block}{other}", [call, PUT])
    check(name, f"{block} and\n{other}{block}", [call, PUT, call], "and")
    for cut in (f"{opener}call:put{{path:{quote}a", f"{opener}call:put{{path:{quote}a}}", block[: -len(closer) - 1]):
        assert not read(name, cut, "length").tool_calls


@pytest.mark.parametrize("marks", GEMMA, ids=["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    "value", ["a C b", "C", "}C", "OxC", "OcC}C", "a, n: C", "}}]", "a, path:", "x,n:1}C b", "]} "]
)
def test_the_marks_of_a_block_in_a_string_are_data(marks: tuple[str, str, str], value: str) -> None:
    opener, quote, closer = marks
    name = "gemma4" if opener == "<|tool_call>" else "functiongemma"
    text = value.replace("O", opener).replace("C", closer)
    calls = f"{opener}call:put{{path:{quote}{text}{quote},tags:[{quote}{text}{quote}]}}{closer}"
    check(name, calls, [("put", {"path": text, "tags": [text]})])


@pytest.mark.parametrize("deep", [70, 2_000])
@pytest.mark.parametrize("opener", ["[", "{a:", "[{a:", "[[{a:"])
@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_brackets_in_brackets_end_somewhere(name: str, opener: str, deep: int) -> None:
    block = toolcall.get_format(name).blocks[0]
    text = f"{block.opener}call:put{{opts:{opener * deep}1"
    answer = toolcall.parse(text, TOOLS, format=name)
    assert (answer.tool_calls, answer.content) == ((), text)


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("hunyuan", "<tool_calls>\n<tool_call>now<tool_sep><tool_sep>\n</tool_call>\n</tool_calls>", [NOW]),
        (
            "hunyuan",
            "<tool_call>put<tool_sep>\n<tool_sep>\n<arg_key>path</arg_key>\n<arg_value>a</arg_value></tool_call>",
            [PUT],
        ),
        ("minicpm5", '<function name="now"></function></function>', [NOW]),
        ("minicpm5", '<function name="put"><param name="path">a</param></function>\n</function>', [PUT]),
    ],
)
def test_marks_that_come_twice(name: str, text: str, calls: list[Call]) -> None:
    check(name, text, calls)
