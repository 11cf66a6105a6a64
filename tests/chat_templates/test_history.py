"""Everything that real clients send as history becomes one shape."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_templates import HistoryError, normalise, normalise_tools
from chat_templates.history import MEDIA_PARTS, RAW_ARGUMENTS, parse_arguments

USER = {"role": "user", "content": "go"}


def call(call_id: str | None, name: str = "f", arguments: object = "{}") -> dict:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(*calls: dict, **extra: object) -> dict:
    return {"role": "assistant", "tool_calls": list(calls), **extra}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("", ""),
        ("x", "x"),
        ([], ""),
        (["a", "b"], "ab"),
        ([{"type": "text", "text": "18 "}, {"type": "text", "text": "C"}], "18 C"),
        ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
        ([{"text": "no type"}], "no type"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
    ],
)
@pytest.mark.parametrize("role", ["system", "user", "assistant", "developer"])
def test_content(role: str, content: object, text: str) -> None:
    assert normalise([{"role": role, "content": content}, USER])[0]["content"] == text


def test_missing_content_is_empty() -> None:
    assert normalise([USER, turn(call("a"))])[1]["content"] == ""


def test_object_content_of_a_tool_is_its_json() -> None:
    messages = normalise([USER, turn(call("a")), {"role": "tool", "tool_call_id": "a", "content": {"temp": 18}}])
    assert messages[2]["content"] == '{"temp": 18}'


@pytest.mark.parametrize("kind", ["image_url", "input_image", "input_audio", "file", "video_url"])
def test_media_is_refused_by_name(kind: str) -> None:
    with pytest.raises(HistoryError, match="text only") as error:
        normalise([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}])
    assert error.value.param == "messages.0.content.1"


@pytest.mark.parametrize("kind", [*MEDIA_PARTS])
def test_media_in_a_result_is_told_of(kind: str) -> None:
    result = {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "Here: "}, {"type": kind}]}
    content = normalise([USER, turn(call("a")), result])[2]["content"]
    assert content == f"Here: [{MEDIA_PARTS[kind]} left out: this model reads text only]"


@pytest.mark.parametrize(
    "bad",
    [
        [],
        "text",
        ["text"],
        [{}],
        [{"role": "wizard", "content": "x"}],
        [{"role": ["user"], "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"a": 1}}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": [{"type": "mystery"}]}],
        [USER, {"role": "assistant", "tool_calls": "x"}],
        [USER, {"role": "assistant", "tool_calls": [5]}],
        [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}],
        [USER, {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": ""}}]}],
    ],
)
def test_what_cannot_be_a_conversation_is_a_history_error(bad: list) -> None:
    with pytest.raises(HistoryError):
        normalise(bad)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Lima"}', {"city": "Lima"}),
        ({"city": "Lima"}, {"city": "Lima"}),
        ("", {}),
        ("  ", {}),
        (None, {}),
        ('"Beijing"', {RAW_ARGUMENTS: '"Beijing"'}),
        ('"{\\"city\\": \\"Lima\\"}"', {"city": "Lima"}),
        (json.dumps(json.dumps(json.dumps({"city": "Lima"}))), {"city": "Lima"}),
        ('""', {}),
        ('"{\\"city\\": \\"Li"', {RAW_ARGUMENTS: '"{\\"city\\": \\"Li"'}),
        ("[1]", {RAW_ARGUMENTS: "[1]"}),
        ('{"city": "Li', {RAW_ARGUMENTS: '{"city": "Li'}),
        ([1], {RAW_ARGUMENTS: [1]}),
        (5, {RAW_ARGUMENTS: 5}),
        ("[" * 100_000, {RAW_ARGUMENTS: "[" * 100_000}),
        ('{"a":' * 90 + "1" + "}" * 90, {RAW_ARGUMENTS: '{"a":' * 90 + "1" + "}" * 90}),
    ],
)
def test_arguments(arguments: object, expected: dict) -> None:
    assert parse_arguments(arguments) == expected


@given(st.text())
def test_no_argument_text_raises(text: str) -> None:
    assert isinstance(parse_arguments(text), dict)


def test_results_follow_the_order_of_the_calls() -> None:
    results = [
        {"role": "tool", "tool_call_id": "b", "content": "B"},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
    ]
    messages = normalise([USER, turn(call("a", "f"), call("b", "g")), *results])
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in messages[2:]] == [("a", "f", "A"), ("b", "g", "B")]


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "b", "name": "g"},
        {"extra": {"function_id": "b"}},
        {"name": "g"},
        {"tool_call_id": None, "id": "b"},
    ],
)
def test_a_result_is_found_by_other_fields(fields: dict) -> None:
    results = [{"role": "tool", "content": "B", **fields}, {"role": "tool", "content": "A"}]
    messages = normalise([USER, turn(call("a", "f"), call("b", "g")), *results])
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [("a", "A"), ("b", "B")]


def test_results_without_any_id_keep_their_order() -> None:
    results = [{"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]
    messages = normalise([USER, turn(call(None), call(None)), *results])
    ids = [c["id"] for c in messages[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["content"]) for m in messages[2:]] == [(ids[0], "1"), (ids[1], "2")]


def test_ids_that_repeat_in_every_turn_bind_to_the_turn_before() -> None:
    messages = normalise(
        [
            USER,
            turn(call("call_0", "f")),
            {"role": "tool", "tool_call_id": "call_0", "content": "1"},
            turn(call("call_0", "g")),
            {"role": "tool", "tool_call_id": "call_0", "content": "2"},
        ]
    )
    assert [m["name"] for m in messages if m["role"] == "tool"] == ["f", "g"]


def test_more_results_than_calls_are_all_kept() -> None:
    results = [{"role": "tool", "tool_call_id": "a", "content": str(i)} for i in range(3)]
    assert [m["content"] for m in normalise([USER, turn(call("a")), *results])[2:]] == ["0", "1", "2"]


def test_a_result_without_a_call_is_explained() -> None:
    with pytest.raises(HistoryError, match="must follow an assistant message with tool_calls"):
        normalise([USER, {"role": "tool", "tool_call_id": "x", "content": "y"}])


def test_legacy_function_call_and_function_role() -> None:
    messages = normalise(
        [
            USER,
            {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "f", "content": "R"},
        ]
    )
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert messages[2] == {
        "role": "tool",
        "name": "f",
        "content": "R",
        "tool_call_id": messages[1]["tool_calls"][0]["id"],
    }


def test_keys_that_sdks_send_back_are_dropped() -> None:
    extra = {"parsed": None, "refusal": None, "annotations": [], "audio": None, "function_call": None}
    sent = {"index": 0, **call("a")}
    sent["function"] = {**sent["function"], "parsed_arguments": {"x": 1}}
    message = normalise([USER, turn(sent, **extra)])[1]
    assert set(message) == {"role", "content", "tool_calls"}
    assert message["tool_calls"] == [call("a", arguments={})]


def test_empty_tool_calls_are_a_plain_turn() -> None:
    assert normalise([USER, {"role": "assistant", "content": "b", "tool_calls": []}])[1] == {
        "role": "assistant",
        "content": "b",
    }


def test_developer_and_several_system_messages_become_one() -> None:
    messages = normalise([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER])
    assert messages == [{"role": "system", "content": "a\n\nb"}, USER]


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept(key: str) -> None:
    assert normalise([USER, {"role": "assistant", "content": "x", key: "hm"}])[1]["reasoning_content"] == "hm"


MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "developer"])},
        optional={
            "content": st.one_of(st.none(), st.text(max_size=5), st.lists(st.text(max_size=3), max_size=2)),
            "tool_calls": st.lists(
                st.builds(call, st.one_of(st.none(), st.text(max_size=2)), st.just("f"), st.text(max_size=5)),
                max_size=2,
            ),
        },
    ),
    min_size=1,
    max_size=6,
)


@given(MESSAGES)
def test_normalise_is_idempotent(messages: list[dict]) -> None:
    once = normalise(messages)
    assert normalise(once) == once


def test_tools_are_shaped_and_ordered() -> None:
    tools = [
        {"function": {"parameters": {"type": "object"}, "name": "f", "strict": True}, "type": "function"},
        {"type": "web_search"},
        {"type": "namespace", "name": "n", "tools": []},
        {"name": "legacy", "description": "d"},
    ]
    assert [list(tool["function"]) for tool in normalise_tools(tools)] == [
        ["name", "parameters"],
        ["name", "description", "parameters"],
    ]
    assert normalise_tools(None) == []
    with pytest.raises(HistoryError):
        normalise_tools([{"type": "function", "function": {}}])


def test_calls_of_one_turn_with_the_same_id_get_their_results_in_order() -> None:
    """Servers that number badly give every call the id ``call_0``."""
    calls = [{"id": "call_0", "function": {"name": name, "arguments": "{}"}} for name in ("f", "g")]
    results = [{"role": "tool", "tool_call_id": "call_0", "content": text} for text in ("of f", "of g")]
    shaped = normalise([{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": calls}, *results])
    ids = [call["id"] for call in shaped[1]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in shaped[2:]] == [
        (ids[0], "f", "of f"),
        (ids[1], "g", "of g"),
    ]
    assert normalise(shaped) == shaped


def told(call_id: str, text: str) -> dict:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def results(messages: list[dict]) -> list[tuple[str, str, str]]:
    return [(m["tool_call_id"], m["name"], m["content"]) for m in normalise(messages) if m["role"] == "tool"]


APART = [turn(call("a", "f")), turn(call("b", "g"))]


@pytest.mark.parametrize("between", [[], [USER], [{"role": "system", "content": "s"}]], ids=["", "user", "system"])
@pytest.mark.parametrize("sent", [("a", "b"), ("b", "a"), ("", "")], ids=str)
def test_calls_of_several_assistant_messages_get_their_results(between: list[dict], sent: tuple[str, str]) -> None:
    texts = {"a": "of f", "b": "of g", "": ""}
    given = [told(one, texts[one] or f"of {'fg'[index]}") for index, one in enumerate(sent)]
    assert results([USER, *APART, *between, *given]) == [("a", "f", "of f"), ("b", "g", "of g")]


def test_a_late_result_without_an_id_is_that_of_a_call_that_has_none_yet() -> None:
    first = [turn(call("a", "f")), told("a", "1")]
    second = [turn(call("b", "g")), USER, told("", "2")]
    assert results([USER, *first, *second]) == [("a", "f", "1"), ("b", "g", "2")]


def test_a_refusal_is_what_the_assistant_said() -> None:
    said = normalise([USER, {"role": "assistant", "content": None, "refusal": "I can't."}, USER])[1]
    assert said == {"role": "assistant", "content": "I can't."}
    assert normalise([{"role": "assistant", "content": "Yes.", "refusal": None}])[0]["content"] == "Yes."
