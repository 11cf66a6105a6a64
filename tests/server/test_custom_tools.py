"""Custom tools: the model is told of functions with one argument, the client gets text, on chat and on Responses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionMessageCustomToolCall

from server.custom_tools import CustomCalls
from tests.fakes import Reply
from tests.server.conftest import Gateway, events
from tests.server.openai.response_checks import check_response, check_stream
from tests.server.sse import named_events
from toolcall.events import Event, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

PATCH = {"name": "patch", "description": "Change a file."}
CHAT = [
    {"type": "custom", "custom": PATCH},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}},
]
FLAT = [{"type": "custom", **PATCH}, {"type": "function", **CHAT[1]["function"]}]
TEXTS = ['*** Begin Patch\n+é "q" \\ 😀\n\t</tool_call>', "", "x"]
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2}}\n</tool_call>'


def call(words: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': 'patch', 'arguments': {'input': words}})}\n</tool_call>"


def feed(*fragments: str) -> list[Event]:
    calls, found = CustomCalls({"patch"}), []
    found += calls.apply([ToolCallStart(0, "c", "patch")])
    for fragment in fragments:
        found += calls.apply([ToolCallArguments(0, fragment)])
    return found + calls.apply([ToolCallEnd(0)])


def words(found: list[Event]) -> str:
    return "".join(event.fragment for event in found if isinstance(event, ToolCallArguments))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), st.integers(1, 7), st.sampled_from(["", " "]))
def test_the_text_is_what_stands_in_the_arguments(text: str, plain: bool, size: int, gap: str) -> None:
    written = f'{{{gap}"input":{gap}{json.dumps(text, ensure_ascii=plain)}{gap}}}'
    found = feed(*(written[i : i + size] for i in range(0, len(written), size)))
    assert words(found) == text
    assert [type(event) for event in found if not isinstance(event, ToolCallArguments)] == [ToolCallStart, ToolCallEnd]
    assert all(event.fragment.encode() for event in found[1:-1])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('{"patch": "x"}', "x"),
        ('{"why": 1, "input": "x"}', "x"),
        ('{"a": "x", "b": "y"}', '{"a": "x", "b": "y"}'),
        ('{"input": 5}', '{"input": 5}'),
        ("{}", "{}"),
        ("plain", "plain"),
        ('{"input": "half \\ud83d"}', "half ?"),
        ('{"input": "x", "more": "y"}', "x"),
    ],
)
def test_arguments_of_another_shape_are_not_lost(written: str, expected: str) -> None:
    assert words(feed(written)) == words(feed(*written)) == expected


def test_other_calls_and_text_pass() -> None:
    seen = [TextDelta("a"), ToolCallStart(0, "c", "add"), ToolCallArguments(0, '{"input": "x"}'), ToolCallEnd(0)]
    assert CustomCalls({"patch"}).apply(seen) == seen


@pytest.mark.parametrize("chunk", [0, 1, 5])
@pytest.mark.parametrize("text", TEXTS)
async def test_chat(make_gateway: Callable[..., Any], text: str, chunk: int) -> None:
    async with make_gateway(Reply(f"{call(text)}\n{ADD}", chunk=chunk)) as gateway:
        whole = (await gateway.chat(tools=CHAT)).json()
        chunks = await gateway.stream(tools=CHAT)
    choice = ChatCompletion.model_validate(whole, strict=True).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    first, second = choice.message.tool_calls
    assert isinstance(first, ChatCompletionMessageCustomToolCall)
    assert (first.custom.name, first.custom.input) == ("patch", text)
    assert second.type == "function"
    deltas = [entry for chunk in chunks[:-1] for entry in chunk["choices"][0]["delta"].get("tool_calls", ())]
    heads = [entry for entry in deltas if "id" in entry]
    assert [(head["index"], head["type"]) for head in heads] == [(0, "custom"), (1, "function")]
    assert heads[0]["custom"] == {"name": "patch", "input": ""}
    pieces = [entry for entry in deltas if entry["index"] == 0][1:]
    assert all(set(piece) == {"index", "custom"} and set(piece["custom"]) == {"input"} for piece in pieces)
    assert "".join(piece["custom"]["input"] for piece in pieces) == text
    rest = [entry["function"]["arguments"] for entry in deltas if entry["index"] == 1]
    assert json.loads("".join(rest)) == {"a": 2}


@pytest.mark.parametrize("chunk", [0, 1, 5])
@pytest.mark.parametrize("text", TEXTS)
async def test_responses(make_gateway: Callable[..., Any], text: str, chunk: int) -> None:
    body = {"model": "test-model", "input": "hi", "tools": FLAT}
    async with make_gateway(Reply(f"{call(text)}\n{ADD}", chunk=chunk)) as gateway:
        whole = check_response((await gateway.client.post("/v1/responses", json=body)).json())
        answer = await gateway.client.post("/v1/responses", json=body | {"stream": True})
        streamed = check_stream(named_events(answer.text))
        item = whole["output"][0]
        output = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
        again = await gateway.client.post(
            "/v1/responses", json=body | {"input": [output], "previous_response_id": whole["id"]}
        )
        assert again.status_code == 200, again.text
        prompt = gateway.engine.requests[-1].text
    assert item["id"].startswith("ctc_")
    assert (item["type"], item["name"], item["input"], item["status"]) == (
        "custom_tool_call",
        "patch",
        text,
        "completed",
    )
    assert [entry["type"] for entry in streamed["output"]] == ["custom_tool_call", "function_call"]
    assert streamed["output"][0]["input"] == text
    assert "done" in prompt


@pytest.mark.parametrize("limit", [30, 60, 75, 80])
async def test_a_custom_call_that_is_cut_off_is_left_out(make_gateway: Callable[..., Any], limit: int) -> None:
    body = {"model": "test-model", "input": "hi", "tools": FLAT, "max_output_tokens": limit}
    async with make_gateway(Reply(call("a long text" * 9), chunk=1)) as gateway:
        whole = check_response((await gateway.client.post("/v1/responses", json=body)).json())
        answer = await gateway.client.post("/v1/responses", json=body | {"stream": True})
        streamed = check_stream(named_events(answer.text))
        chat = (await gateway.chat(tools=CHAT, max_tokens=limit)).json()["choices"][0]
    assert whole["status"] == streamed["status"] == "incomplete"
    assert [item["type"] for item in whole["output"]] == [item["type"] for item in streamed["output"]] == ["message"]
    assert (chat["finish_reason"], "tool_calls" in chat["message"]) == ("length", False)


NESTED = 'start: "(" start ")" | "Begin Patch"'
HELD = [("lark", 'start: "*** Begin Patch" /.+/'), ("regex", r"^\*{3} Begin Patch.+$"), ("regex", "a|Begin Patch")]


def grammar_tools(syntax: str, definition: str) -> tuple[list[Any], list[Any]]:
    """The tools of a chat request and of one to /v1/responses."""
    inner = {"syntax": syntax, "definition": definition}
    flat = [{"type": "web_search"}, {"type": "custom", "name": "patch", "format": {"type": "grammar", **inner}}]
    return [{"type": "custom", "custom": {**PATCH, "format": {"type": "grammar", "grammar": inner}}}], flat


async def notes(gateway: Gateway, chat: list[Any], flat: list[Any]) -> list[list[str]]:
    """What a chat answer and a response say of their tools' grammars: the fields."""
    body = {"model": "test-model", "input": "hi", "tools": flat}
    answers = [await gateway.chat(tools=chat), await gateway.client.post("/v1/responses", json=body)]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    told = [answer.json().get("callgate", {}).get("relaxed_schemas", []) for answer in answers]
    return [[note.split(" is ")[0] for note in found] for found in told]


@pytest.mark.parametrize(("syntax", "definition"), HELD)
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_grammar_is_shown_and_enforced(
    make_gateway: Callable[..., Any], syntax: str, definition: str, choice: str
) -> None:
    chat, flat = grammar_tools(syntax, definition)
    async with make_gateway(call("x")) as gateway:
        assert await notes(gateway, chat, flat) == [[], []]
        await gateway.chat(tools=chat, tool_choice=choice)
        request = gateway.engine.requests[-1]
    assert "Begin Patch" in request.text
    assert '"pattern"' not in request.text
    assert '"pattern": "^(?:' in request.grammar.source
    assert "Begin Patch" in request.grammar.source


async def test_what_no_pattern_says_is_shown_and_the_answer_tells(make_gateway: Callable[..., Any]) -> None:
    chat, flat = grammar_tools("lark", NESTED)
    async with make_gateway(call("x")) as gateway:
        assert await notes(gateway, chat, flat) == [["tools[0].custom.format"], ["tools[1].format"]]
        assert "Begin Patch" in gateway.engine.requests[-1].text
        free = [{"type": "custom", "custom": {**PATCH, "format": {"type": "text"}}}]
        assert "callgate" not in (await gateway.chat(tools=free)).json()


@pytest.mark.parametrize("policy", ["off", "strict-only"])
async def test_where_calls_are_free_the_answer_tells(make_gateway: Callable[..., Any], policy: str) -> None:
    chat, flat = grammar_tools(*HELD[0])
    async with make_gateway(call("x"), tool_grammar=policy) as gateway:
        assert await notes(gateway, chat, flat) == [["tools[0].custom.format"], ["tools[1].format"]]
        forced = await gateway.chat(tools=chat, tool_choice="required")
        assert "callgate" not in forced.json()


async def test_they_can_be_chosen(make_gateway: Callable[..., Any]) -> None:
    named = {"type": "custom", "name": "patch"}
    nested = {"type": "custom", "custom": {"name": "patch"}}
    async with make_gateway(call("x")) as gateway:
        for choice in ("required", nested, named, _allowed([nested]), _allowed([nested, CHAT[1]])):
            answer = await gateway.chat(tools=CHAT, tool_choice=choice)
            assert answer.status_code == 200, answer.text
            assert answer.json()["choices"][0]["message"]["tool_calls"][0]["custom"]["input"] == "x"
        for choice in ("required", named, {"type": "allowed_tools", "mode": "required", "tools": [named]}):
            body = {"model": "test-model", "input": "hi", "tools": FLAT, "tool_choice": choice}
            answer = await gateway.client.post("/v1/responses", json=body)
            assert answer.status_code == 200, answer.text
            assert check_response(answer.json())["tool_choice"] == choice
            assert answer.json()["output"][0]["type"] == "custom_tool_call"


def _allowed(tools: list[Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": tools}}


async def test_history_reads_as_the_function_that_the_model_knows(gateway: Gateway) -> None:
    user = {"role": "user", "content": "hi"}
    calls = [{"id": "c", "type": "custom", "custom": {"name": "patch", "input": 'a "b"\n'}}]
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    assert (await gateway.chat(user, {"role": "assistant", "tool_calls": calls}, result)).status_code == 200
    custom = gateway.engine.requests[-1].text
    arguments = json.dumps({"input": 'a "b"\n'})
    calls = [{"id": "c", "type": "function", "function": {"name": "patch", "arguments": arguments}}]
    assert (await gateway.chat(user, {"role": "assistant", "tool_calls": calls}, result)).status_code == 200
    assert gateway.engine.requests[-1].text == custom


BAD_TOOLS = [
    ({}, "name"), ({"name": ""}, "name"), ({"name": "a b"}, "name"), ({"name": "f", "description": 5}, "description"),
    ({"name": "f", "format": 5}, "format"), ({"name": "f", "format": {}}, "format"),
    ({"name": "f", "format": {"type": "json"}}, "format"), ({"name": "f", "format": {"type": "grammar"}}, "format"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "lark"}}, "format"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "ebnf", "definition": "x"}}, "format"),
    ({"name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "x" * 64_001}}, "format"),
    ({"name": "f", "format": {"type": "grammar", "grammar": 5}}, "format"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "key"), BAD_TOOLS)
async def test_refusals_name_the_field(gateway: Gateway, tool: dict[str, Any], key: str) -> None:
    answer = await gateway.chat(tools=[CHAT[1], {"type": "custom", "custom": tool}])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[1].custom.{key}")
    body = {"model": "test-model", "input": "hi", "tools": [{"type": "web_search"}, {"type": "custom", **tool}]}
    answer = await gateway.client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"tools[1].{key}")


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ([{"id": "c", "type": "custom"}], "custom"),
        ([{"id": "c", "type": "custom", "custom": {"input": "x"}}], "custom.name"),
        ([{"id": "c", "type": "custom", "custom": {"name": "f"}}], "custom.input"),
        ([{"id": "c", "type": "custom", "custom": {"name": "f", "input": {}}}], "custom.input"),
    ],
)
async def test_broken_calls_of_the_history_are_named(gateway: Gateway, calls: Any, param: str) -> None:
    answer = await gateway.chat({"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, f"messages[1].tool_calls[0].{param}")


async def test_a_tool_that_is_no_object_and_a_name_declared_twice(gateway: Gateway) -> None:
    for tools in ([{"type": "custom"}], [{"type": "custom", "custom": "x"}]):
        assert (await gateway.chat(tools=tools)).json()["error"]["param"] == "tools[0].custom"
    twice = [CHAT[0], {"type": "function", "function": {"name": "patch"}}]
    assert (await gateway.chat(tools=twice)).status_code == 400


async def test_legacy_functions_hold_no_custom_tools(gateway: Gateway) -> None:
    answer = await gateway.chat(functions=[{"type": "custom", "custom": PATCH}])
    assert answer.status_code == 400


async def test_several_choices_keep_their_kinds_apart(make_gateway: Callable[..., Any]) -> None:
    def script(request: Any, index: int) -> Reply:
        return Reply(ADD if index == 0 else call("x"), chunk=3)

    async with make_gateway(script) as gateway:
        chunks = events((await gateway.chat(tools=CHAT, n=2, stream=True)).text)[:-1]
    kinds: dict[int, set[str]] = {0: set(), 1: set()}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for entry in choice["delta"].get("tool_calls", ()):
                kinds[choice["index"]] |= entry.keys() & {"custom", "function"}
    assert kinds == {0: {"function"}, 1: {"custom"}}
