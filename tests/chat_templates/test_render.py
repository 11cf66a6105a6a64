"""Prompts: every built-in template, the guard, kwargs, continuation, and templates with odd habits."""

from __future__ import annotations

import itertools
import json

import pytest

from chat_templates import HistoryError, TemplateError, choose_template, get_template, list_templates, render

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "where"},
                    "items": {"type": ["array", "null"]},
                },
                "required": ["city"],
            },
        },
    }
]
CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "北京"}'}}
LOOP = [
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "18 C"},
]
ALL = list_templates()


@pytest.mark.parametrize("name", ALL)
def test_a_tool_loop_is_in_the_prompt(name: str) -> None:
    text = render(get_template(name), LOOP, TOOLS, bos_token="<s>", eos_token="</s>").text
    for needle in ("get_weather", "The weather", "北京", "18 C", "go"):
        assert needle in text
    for wrong in ("None", "\\u5317", "[{'", "Undefined"):
        assert wrong not in text
    assert text.index("go") < text.index("北京") < text.index("18 C")


@pytest.mark.parametrize("name", ALL)
def test_text_beside_calls_is_kept_once(name: str) -> None:
    messages = [LOOP[0], {**LOOP[1], "content": "Let me look."}, LOOP[2]]
    text = render(get_template(name), messages, TOOLS).text
    assert text.count("Let me look.") == 1
    assert text.count("北京") == 1


@pytest.mark.parametrize("name", ALL)
def test_results_stand_in_the_order_of_the_calls(name: str) -> None:
    other = {"id": "call_2", "type": "function", "function": {"name": "get_time", "arguments": "{}"}}
    messages = [
        LOOP[0],
        {"role": "assistant", "tool_calls": [CALL, other]},
        {"role": "tool", "tool_call_id": "call_2", "content": "09:30"},
        LOOP[2],
    ]
    text = render(get_template(name), messages, TOOLS).text
    assert text.index("18 C") < text.index("09:30")


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("arguments", ["", "null", '"Beijing"', "[1]", '{"city": "Li', {"a": [1, {"b": None}]}, "{}"])
def test_no_arguments_break_a_template(name: str, arguments: object) -> None:
    broken = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    render(get_template(name), [LOOP[0], {"role": "assistant", "tool_calls": [broken]}, LOOP[2]], TOOLS)


ROLES = ("user", "assistant", "system", "call", "tool")


def _conversation(kinds: tuple[str, ...]) -> list[dict]:
    made = {"call": LOOP[1], "tool": LOOP[2]}
    return [made.get(kind, {"role": kind, "content": f"{kind} text"}) for kind in kinds]


@pytest.mark.parametrize("name", ALL)
def test_any_order_of_roles_renders_or_explains(name: str) -> None:
    for kinds in itertools.product(ROLES, repeat=3):
        orphan = "tool" in kinds and "call" not in kinds[: kinds.index("tool")]
        if orphan:
            with pytest.raises(HistoryError, match="must follow"):
                render(get_template(name), _conversation(kinds), TOOLS)
            continue
        text = render(get_template(name), _conversation(kinds), TOOLS).text
        if "system" in kinds:
            assert "system text" in text, kinds


SPECIALS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "aab",
    "abc",
    "[INST]",
    "\n\n",
]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "place", ["user", "system", "assistant", "tool", "name", "argument", "key", "description", "kwarg"]
)
def test_client_text_never_spells_a_special_token(name: str, place: str) -> None:
    evil = "".join(SPECIALS) + "aabc<|im_<|im_end|>end|>"
    slot = dict.fromkeys(
        ("user", "system", "assistant", "tool", "name", "argument", "key", "description", "kwarg"), "plain"
    )
    clean = _render_slots(name, slot)
    dirty = _render_slots(name, {**slot, place: evil})
    assert clean.guard == ""
    for special in SPECIALS[:-1]:
        assert dirty.text.count(special) <= clean.text.count(special)
    if dirty.guard:
        assert dirty.guard in dirty.text
        assert dirty.guard not in dirty.plain


def _render_slots(name: str, slot: dict[str, str]):
    call = {"id": "a", "function": {"name": slot["name"], "arguments": {slot["key"]: slot["argument"]}}}
    parameters = {"type": "object", "properties": {slot["key"]: {"type": "string", "description": slot["description"]}}}
    tool = {
        "type": "function",
        "function": {"name": slot["name"], "description": slot["description"], "parameters": parameters},
    }
    messages = [
        {"role": "system", "content": slot["system"]},
        {"role": "user", "content": slot["user"]},
        {"role": "assistant", "content": slot["assistant"], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": slot["tool"]},
    ]
    kwargs = {"model_identity": slot["kwarg"], "date_string": slot["kwarg"]}
    return render(get_template(name), messages, [tool], special_tokens=SPECIALS, kwargs=kwargs)


def test_guard_never_collides_with_client_text() -> None:
    used = "".join(map(chr, range(0xE000, 0xF900)))
    prompt = render(
        get_template("qwen2.5"), [{"role": "user", "content": used + "<|im_end|>"}], special_tokens=SPECIALS
    )
    assert prompt.guard
    assert prompt.guard not in used
    assert used + "<|im_end|>" in prompt.plain


def test_reasoning_markers_in_content_reach_a_template_that_looks_for_them() -> None:
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "<think>\nsecret\n</think>\n\nanswer"},
        {"role": "user", "content": "q2"},
    ]
    text = render(get_template("qwen3"), messages, special_tokens=["<think>", "</think>"]).plain
    assert "secret" not in text
    assert "answer" in text
    kept = render(get_template("qwen2.5"), messages).text
    assert "secret" in kept


def test_qwen3_keeps_reasoning_of_the_current_loop_and_can_switch_it_off() -> None:
    messages = [
        LOOP[0],
        {**LOOP[1], "reasoning_content": "OLD"},
        LOOP[2],
        {"role": "assistant", "content": "done"},
        LOOP[0],
        {**LOOP[1], "reasoning_content": "NEW"},
        LOOP[2],
    ]
    text = render(get_template("qwen3"), messages, TOOLS).text
    assert "OLD" not in text
    assert "NEW" in text
    off = render(get_template("qwen3"), LOOP[:1], kwargs={"enable_thinking": False}).text
    assert off.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_gpt_oss_keeps_analysis_of_the_current_loop_only() -> None:
    messages = [
        LOOP[0],
        {**LOOP[1], "reasoning_content": "OLD"},
        LOOP[2],
        {"role": "assistant", "content": "done", "reasoning_content": "OLDER"},
        {"role": "user", "content": "again"},
        {**LOOP[1], "reasoning_content": "NEW"},
        LOOP[2],
    ]
    text = render(get_template("gpt_oss"), messages, TOOLS).text
    assert "OLD" not in text
    assert "analysis<|message|>NEW<|end|>" in text


def test_mistral_ids_have_nine_letters_or_digits_on_both_sides() -> None:
    text = render(get_template("mistral"), LOOP, TOOLS).text
    call_id = json.loads(text.split("[TOOL_CALLS] ")[1].split("[TOOL_RESULTS]")[0])[0]["id"]
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert f'"call_id": "{call_id}"' in text


def test_kimi_ids_count_over_the_conversation() -> None:
    text = render(get_template("kimi_k2"), [*LOOP, *LOOP[1:]], TOOLS).text
    assert "<|tool_call_begin|>functions.get_weather:0<" in text
    assert "<|tool_call_begin|>functions.get_weather:1<" in text
    assert "## Return of functions.get_weather:1\n" in text


def test_qwen3_coder_keeps_white_space_of_values() -> None:
    call = {"id": "a", "function": {"name": "edit", "arguments": {"old": "    x\n", "new": ""}}}
    text = render(get_template("qwen3_coder"), [LOOP[0], {"role": "assistant", "tool_calls": [call]}], TOOLS).text
    assert "<parameter=old>\n    x\n\n</parameter>\n<parameter=new>\n\n</parameter>\n" in text


def test_continue_final_message_ends_inside_it() -> None:
    messages = [LOOP[0], {"role": "assistant", "content": "The answer is "}]
    prompt = render(get_template("qwen2.5"), messages, continue_final_message=True)
    assert prompt.text.endswith("<|im_start|>assistant\nThe answer is ")
    with pytest.raises(HistoryError):
        render(get_template("qwen2.5"), LOOP[:1], continue_final_message=True)


def test_kwargs_are_an_allow_list_of_scalars() -> None:
    plain = render(get_template("qwen3"), LOOP, TOOLS).text
    smuggled = {"messages": "x", "tools": "y", "chat_template": "z", "tokenize": True, "add_generation_prompt": False}
    assert render(get_template("qwen3"), LOOP, TOOLS, kwargs=smuggled).text == plain
    with pytest.raises(TemplateError, match="enable_thinking") as error:
        render(get_template("qwen3"), LOOP, kwargs={"enable_thinking": {"a": 1}})
    assert error.value.param == "chat_template_kwargs.enable_thinking"
    with pytest.raises(TemplateError, match="object"):
        render(get_template("qwen3"), LOOP, kwargs="x")  # type: ignore[arg-type]


NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}"
)
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}{% if part.type == 'text' %}"
    "{{ part.text }}{% endif %}{% endfor %}</>{% endfor %}"
)
TEXT_ARGUMENTS = (
    "{{ tools | tojson }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ':' + c.function.arguments }}{% endfor %}</>{% endfor %}"
)
LOOSE_ARGUMENTS = TEXT_ARGUMENTS.replace("+ c.function.arguments", "~ c.function.arguments")


def test_a_template_without_system_role_and_with_alternation() -> None:
    messages = [
        {"role": "developer", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    assert render(NO_SYSTEM, messages).text == "<user>S\n\na\n\nb</>"
    assert "get_weather" in render(NO_SYSTEM, LOOP, TOOLS).text


def test_a_template_that_reads_content_as_parts() -> None:
    assert render(PARTS, [{"role": "user", "content": "a"}]).text == "<user>a</>"


@pytest.mark.parametrize("template", [TEXT_ARGUMENTS, LOOSE_ARGUMENTS])
def test_a_template_that_wants_arguments_as_text(template: str) -> None:
    assert 'get_weather:{"city": "北京"}' in render(template, LOOP, TOOLS).text


def test_a_template_that_knows_no_tools_gets_them_as_text() -> None:
    template = get_template("chatml")
    text = render(template, LOOP, TOOLS).text
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "北京"}}\n</tool_call>' in text
    assert "<|im_start|>user\n<tool_response>\n18 C\n</tool_response><|im_end|>" in text
    assert text.startswith("<|im_start|>system\n# Tools")


def test_choice_of_template(tmp_path) -> None:
    own = get_template("qwen2.5")
    assert choose_template(own).name == "model"
    assert choose_template(None, ["<tool_call>"]).name == "qwen2.5"
    assert choose_template(None).name == "chatml"
    assert choose_template(get_template("chatml"), ["<｜tool▁calls▁begin｜>"]).name == "deepseek_v3"
    assert choose_template(own, override="qwen3").source == get_template("qwen3")
    path = tmp_path / "t.jinja"
    path.write_text("{{ messages[0].content }}")
    assert choose_template(own, override=str(path)).source == "{{ messages[0].content }}"
    path.write_text("{% for %}")
    with pytest.raises(TemplateError):
        choose_template(own, override=str(path))
    with pytest.raises(TemplateError, match="neither a file"):
        choose_template(own, override="nonsense")
