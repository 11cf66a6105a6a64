"""Requests in the shapes of other APIs and of languages that write empty objects as lists: each says the same as its
plain form, so each must lead to the same prompt and the same grammar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from server.openai.foreign_shapes import in_chat_shape
from server.schema_tidying import tidied
from tests.server.conftest import Gateway, events

USER = {"role": "user", "content": "Weather?"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NESTED = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"city": "Paris"}}\n</tool_call>'
SAME_TOOL: Mapping[str, Any] = {
    "of Responses": {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False},
    "of Messages": {"name": "f", "description": "d", "input_schema": SCHEMA},
    "of Messages, typed": {"type": "custom", "name": "f", "description": "d", "input_schema": SCHEMA},
    "without a type": {"function": NESTED["function"]},
    "type null": {"type": None, "function": NESTED["function"]},
}


async def _prompt(gateway: Gateway, **body: Any) -> tuple[str, Any]:
    """What the engine was asked."""
    before = len(gateway.engine.requests)
    response = await gateway.client.post("/v1/chat/completions", content=orjson.dumps({"model": "test-model", **body}))
    assert response.status_code == 200, response.text
    assert response.json()["object"] == "chat.completion"
    (request,) = gateway.engine.requests[before:]
    return request.text.replace(request.guard or "\0", ""), request.grammar


@pytest.mark.parametrize("choice", [None, "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("shape", SAME_TOOL)
async def test_a_tool_in_another_shape_is_the_same_tool(gateway: Gateway, shape: str, choice: Any) -> None:
    plain = await _prompt(gateway, messages=[USER], tools=[NESTED], tool_choice=choice)
    assert await _prompt(gateway, messages=[USER], tools=[SAME_TOOL[shape]], tool_choice=choice) == plain
    mixed = {"type": "function", "function": {"name": "g"}}
    plain = await _prompt(gateway, messages=[USER], tools=[mixed, NESTED], tool_choice=choice)
    assert await _prompt(gateway, messages=[USER], tools=[mixed, SAME_TOOL[shape]], tool_choice=choice) == plain


async def test_a_flat_custom_tool_is_a_custom_tool(make_gateway: Callable[..., Any]) -> None:
    reply = '<tool_call>\n{"name": "patch", "arguments": {"input": "*** Begin"}}\n</tool_call>'
    async with make_gateway(reply) as gateway:
        tool = {"type": "custom", "name": "patch", "description": "d", "format": {"type": "text"}}
        answer = (await gateway.chat(USER, tools=[NESTED, tool])).json()
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert call["custom"] == {"name": "patch", "input": "*** Begin"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"type": "any"}, "required"),
        ({"type": "required"}, "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
async def test_tool_choice_in_other_words(gateway: Gateway, written: Any, meant: Any) -> None:
    plain = await _prompt(gateway, messages=[USER], tools=[NESTED], tool_choice=meant)
    assert await _prompt(gateway, messages=[USER], tools=[NESTED], tool_choice=written) == plain


async def test_calls_and_results_as_content_blocks(gateway: Gateway) -> None:
    def plain_call(call_id: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}

    def block(call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "f", "input": {"city": "Paris"}}

    def result(call_id: str, content: Any) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": call_id, "content": content}

    plain = [
        USER,
        {"role": "assistant", "content": "Let me look.", "tool_calls": [plain_call("c1"), plain_call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "rainy"},
        {"role": "user", "content": "And now?"},
    ]
    blocks = [
        USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Let me look."}, block("c1"), block("c2")]},
        {
            "role": "user",
            "content": [
                result("c1", "sunny"),
                result("c2", [{"type": "text", "text": "rainy"}]),
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    assert await _prompt(gateway, messages=blocks, tools=[NESTED]) == await _prompt(
        gateway, messages=plain, tools=[NESTED]
    )
    # calls alone, and results alone
    plain = [USER, {"role": "assistant", "content": None, "tool_calls": [plain_call("c1")]}, plain[2]]
    blocks = [
        USER,
        {"role": "assistant", "content": [block("c1")]},
        {"role": "user", "content": [result("c1", "sunny")]},
    ]
    assert await _prompt(gateway, messages=blocks, tools=[NESTED]) == await _prompt(
        gateway, messages=plain, tools=[NESTED]
    )


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ({"tool_call_id": "c2"}, {}),
        ({"tool_call_id": "c2"}, {"tool_use_id": None}),
        ({"tool_call_id": "c2"}, {"tool_use_id": "c2"}),
        ({}, {"tool_use_id": "c2"}),
        ({"tool_call_id": "c1"}, {"tool_use_id": "c2"}),
        ({"id": "c2"}, {}),
        ({"name": "g"}, {}),
    ],
)
async def test_a_result_block_in_a_tools_own_message(gateway: Gateway, outside: Any, inside: Any) -> None:
    """It answers the call that the block names, else the one that the message does."""
    calls = [
        {"id": f"c{at}", "type": "function", "function": {"name": "fg"[at - 1], "arguments": "{}"}} for at in (1, 2)
    ]
    history = [USER, {"role": "assistant", "content": None, "tool_calls": calls}]
    block = {"type": "tool_result", "content": [{"type": "text", "text": "rainy"}], **inside}
    written = [{"role": "tool", "content": [block], **outside}, {"role": "tool", "tool_call_id": "c1", "content": "x"}]
    meant = [{"role": "tool", "tool_call_id": "c2", "content": "rainy"}, written[1]]
    assert await _prompt(gateway, messages=[*history, *written]) == await _prompt(gateway, messages=[*history, *meant])


def _many(shape: str, count: int) -> dict[str, Any]:
    """A body with ``count`` of something."""
    call: dict[str, Any] = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    result, text = {"type": "tool_result", "tool_use_id": "c", "content": "x"}, {"type": "text", "text": "x"}
    contents: Mapping[str, list[Any]] = {
        "calls": [call] * count,
        "results": [dict(result) for _ in range(count)],
        "blocks among texts": [dict(part) for _ in range(count) for part in (result, text)],
        "lists in lists": [[["x"]]] * count,
    }
    if shape in contents:
        return {"messages": [{"role": "user", "content": contents[shape]}]}
    if shape == "tools":
        return {"messages": [USER], "tools": [{"name": f"f{index}", "input_schema": SCHEMA} for index in range(count)]}
    return {"input": [{"role": "user", "content": "x"}] * count, "model": "m"}


@pytest.mark.parametrize("shape", ["calls", "results", "blocks among texts", "lists in lists", "tools", "input"])
def test_reading_a_long_body_takes_its_length(shape: str) -> None:
    """Bodies are read on the event loop, where all other clients wait: ten times as long is ten times the work."""

    def work(count: int) -> int:
        body, calls = _many(shape, count), 0

        def count_call(*_: Any) -> None:
            nonlocal calls
            calls += 1

        sys.setprofile(count_call)
        try:
            in_chat_shape(body)
        finally:
            sys.setprofile(None)
        return calls

    work(10)
    assert work(800) < 15 * work(80)


@pytest.mark.parametrize(
    "content",
    [
        [[{"type": "text", "text": "sun"}, {"type": "text", "text": "ny"}]],
        [[[{"type": "text", "text": "sun"}]], {"type": "text", "text": "ny"}],
        ["sun", "ny"],
        [["sun"], [], ["ny"]],
        [{"type": "text", "text": "sun"}, "ny"],
    ],
)
async def test_content_in_lists_of_lists(gateway: Gateway, content: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}

    def history(said: Any) -> list[Any]:
        asked = {"role": "assistant", "content": None, "tool_calls": [call]}
        return [{"role": "user", "content": said}, asked, {"role": "tool", "tool_call_id": "c1", "content": said}]

    plain = await _prompt(gateway, messages=history("sunny"), tools=[NESTED])
    assert await _prompt(gateway, messages=history(content), tools=[NESTED]) == plain


@pytest.mark.parametrize("content", [[[5]], [[{"text": "x"}]], [None], [["x", {"type": "image_url"}]]])
async def test_what_is_no_part_stays_refused_in_lists_of_lists(gateway: Gateway, content: Any) -> None:
    response = await gateway.chat({"role": "user", "content": content})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages[0].content[")


async def test_a_body_of_responses_is_answered_as_chat(make_gateway: Callable[..., Any]) -> None:
    flat = SAME_TOOL["of Responses"]
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"city": "Paris"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"role": "user", "content": "And in Paris?"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Paris"}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "And in Paris?"},
    ]
    body = {
        "instructions": "Be brief.",
        "input": items,
        "tools": [flat, {"type": "web_search"}],
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "max_output_tokens": 500,
    }
    async with make_gateway(CALL) as gateway:
        plain = await _prompt(gateway, messages=messages, tools=[NESTED], reasoning_effort="low")
        assert await _prompt(gateway, **body) == plain
        assert gateway.engine.requests[-1].sampling.max_tokens == 500
        response = await gateway.client.post("/v1/chat/completions", json={**body, "stream": True})
        found = events(response.text)
        assert found[-1] == "[DONE]"
        assert {chunk["object"] for chunk in found[:-1]} == {"chat.completion.chunk"}
        assert found[-2]["choices"][0]["finish_reason"] == "tool_calls"
        # the string form, and a format
        shaped = {"type": "json_schema", "name": "w", "schema": SCHEMA}
        chat = {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}
        plain = await _prompt(gateway, messages=[USER], response_format=chat)
        assert await _prompt(gateway, input="Weather?", text={"format": shaped}) == plain


@pytest.mark.parametrize("field", ["previous_response_id", "conversation", "background", "prompt"])
async def test_what_only_responses_can_do_is_refused(gateway: Gateway, field: str) -> None:
    response = await gateway.client.post("/v1/chat/completions", json={"input": "hi", field: "x"})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert "/v1/responses" in response.json()["error"]["message"]


async def test_items_of_stored_responses_are_refused(gateway: Gateway) -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    response = await gateway.client.post("/v1/chat/completions", json={"input": [USER, reference]})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input[1]"


@pytest.mark.parametrize(
    "tool",
    [
        {},
        {"type": "rocket", "name": "f"},
        {"type": "function"},
        {"type": "web_search"},
        {"type": "function", "name": 5},
    ],
)
async def test_what_is_no_tool_in_any_shape_stays_refused(gateway: Gateway, tool: Any) -> None:
    response = await gateway.chat(USER, tools=[tool])
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("tools[0]")


@pytest.mark.parametrize("body", [{"messages": [USER]}, {}])
async def test_without_input_messages_are_what_is_missing(gateway: Gateway, body: Any) -> None:
    response = await gateway.client.post("/v1/chat/completions", json={**body, "input": None})
    assert response.status_code == (200 if body else 400)
    assert body or response.json()["error"]["code"] == "missing_required_parameter"


@pytest.mark.parametrize(
    ("reasoning", "plain"),
    [
        ({"effort": "low"}, {"reasoning_effort": "low"}),
        ({"effort": "none"}, {"reasoning_effort": "none"}),
        ({"enabled": False}, {"enable_thinking": False}),
        ({"enabled": True, "max_tokens": 500}, {"enable_thinking": True}),
        ({}, {}),
        (None, {}),
        ("low", {}),
    ],
)
async def test_reasoning_as_an_object(gateway: Gateway, reasoning: Any, plain: Any) -> None:
    meant = await _prompt(gateway, messages=[USER], **plain)
    assert await _prompt(gateway, messages=[USER], reasoning=reasoning) == meant


async def test_reasoning_can_be_left_out_and_has_to_be_known(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("<think>\nhm\n</think>\n\nSunny.") as gateway:
        message = (await gateway.chat(USER)).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "hm"
        assert "reasoning" not in message
        for reasoning in ({"effort": "low"}, {"enabled": True}):  # OpenRouter's clients read OpenRouter's field
            message = (await gateway.chat(USER, reasoning=reasoning)).json()["choices"][0]["message"]
            assert message["reasoning"] == message["reasoning_content"] == "hm"
            deltas = [
                choice["delta"]
                for chunk in (await gateway.stream(USER, reasoning=reasoning))[:-1]
                for choice in chunk["choices"]
            ]
            assert "".join(delta.get("reasoning", "") for delta in deltas) == "hm"
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
        message = (await gateway.chat(USER, reasoning={"exclude": True})).json()["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "Sunny.", "refusal": None}
        response = await gateway.chat(USER, reasoning={"effort": "ultra"})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "reasoning.effort"


UNTIDY = [
    ({"type": "object", "properties": []}, {"type": "object", "properties": {}}),
    ({"type": "object", "properties": None, "required": None}, {"type": "object"}),
    (
        {"type": "object", "properties": {"a": []}, "required": []},
        {"type": "object", "properties": {"a": {}}, "required": []},
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": {}},
        {"type": "object", "properties": {"a": {"type": "string"}}},
    ),
    (
        {"type": "object", "properties": {"a": {"type": "string", "enum": None, "pattern": None, "minLength": None}}},
        {"type": "object", "properties": {"a": {"type": "string"}}},
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": []}},
            "$defs": [],
            "additionalProperties": [],
        },
        {
            "type": "object",
            "properties": {"a": {"type": "array", "items": {}}},
            "$defs": {},
            "additionalProperties": {},
        },
    ),
    (
        {
            "type": "object",
            "properties": {
                "a": {"type": "string", "required": True},
                "b": {"type": "string", "required": False},
                "c": {"type": "object", "properties": {"d": {"type": "string", "required": True}}, "required": ["d"]},
            },
        },
        {
            "type": "object",
            "properties": {
                "a": {"type": "string"},
                "b": {"type": "string"},
                "c": {"type": "object", "properties": {"d": {"type": "string"}}, "required": ["d"]},
            },
            "required": ["a"],
        },
    ),
    (
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#kind"},
                "tree": {"$id": "T0", "type": "object", "properties": {"nodes": {"items": {"$ref": "T0"}}}},
                "b": {"$ref": "T0#/properties/nodes"},
            },
            "$defs": {"x/y": {"$anchor": "kind", "enum": ["c"]}},
        },
        {
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/x~1y"},
                "tree": {
                    "$id": "T0",
                    "type": "object",
                    "properties": {"nodes": {"items": {"$ref": "#/properties/tree"}}},
                },
                "b": {"$ref": "#/properties/tree/properties/nodes"},
            },
            "$defs": {"x/y": {"$anchor": "kind", "enum": ["c"]}},
        },
    ),
    (
        {"$dynamicAnchor": "node", "properties": {"c": {"items": {"$dynamicRef": "#node"}}}},
        {"$dynamicAnchor": "node", "properties": {"c": {"items": {"$ref": "#"}}}},
    ),
]


@pytest.mark.parametrize(("written", "meant"), UNTIDY)
async def test_untidy_schemas_are_read_as_what_they_mean(gateway: Gateway, written: Any, meant: Any) -> None:
    assert tidied(written) == meant

    async def both(**fields: Callable[[Any], Any]) -> None:
        found = [
            await _prompt(gateway, messages=[USER], **{name: make(schema) for name, make in fields.items()})
            for schema in (written, meant)
        ]
        assert found[0] == found[1]

    def tools(schema: Any) -> Any:
        return [{"type": "function", "function": {"name": "f", "parameters": schema}}]

    await both(tools=tools)
    await both(tools=tools, tool_choice=lambda _: "required")
    await both(response_format=lambda schema: {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    await both(guided_json=lambda schema: schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#x"}}, "$defs": {"a": {"$anchor": "x"}, "b": {"$anchor": "x"}}},
        {
            "properties": {
                "a": {"$ref": "https://example.org/s"},
                "b": {"$ref": "#nothing"},
                "$ref": {"const": {"$ref": "#x"}},
            },
            "$anchor": "x",
        },
        {
            "type": "object",
            "properties": {"a": {"enum": [None, []], "default": None}, "b": {"const": None}},
            "examples": [[]],
        },
        {"type": "object", "properties": {"default": {"type": "null"}, "required": {"enum": []}}, "required": []},
        {"dependentRequired": {"a": []}, "properties": [1, 2]},
        {
            "type": "object",
            "properties": {"required": {"type": "boolean"}, "a": {"const": {"required": True}}},
            "required": [],
        },
        {"required": True},
        [],
        "x",
        None,
    ],
)
def test_data_in_schemas_and_lists_that_hold_something_stay(schema: Any) -> None:
    assert tidied(schema) == schema


async def test_empty_objects_of_php(gateway: Gateway) -> None:
    """As arguments of calls in history, on all three APIs."""
    arguments: list[Any] = [[], "[]", {}, "{}", "", None]
    prompts = set()
    for given in arguments:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": given}}
        history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
        result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
        prompts.add((await _prompt(gateway, messages=[*history, result]))[0])
    assert len(prompts) == 1
    prompts.clear()
    for given in ([], {}, None):
        block = {"type": "tool_use", "id": "c1", "name": "f", "input": given}
        result = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
        history = [USER, {"role": "assistant", "content": [block]}, {"role": "user", "content": [result]}]
        response = await gateway.client.post("/v1/messages", json={"max_tokens": 9, "messages": history})
        assert response.status_code == 200, response.text
        request = gateway.engine.requests[-1]
        prompts.add(request.text.replace(request.guard or "\0", ""))
    assert len(prompts) == 1
