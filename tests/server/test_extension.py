"""The ``callgate`` field of an answer: rescued calls and schemas that are not enforced. Clients ignore it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.fakes import Reply
from tests.server.conftest import Gateway, events
from tests.server.test_chat import PARIS, USER, WEATHER

BARE = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
ODD = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"const": "uncompilable"}}}},
}


async def both(gateway: Gateway, **fields: Any) -> tuple[Any, Any]:
    """The field in a whole answer and in the last chunk of a stream, None where absent; nowhere else in it."""
    whole = (await gateway.chat(USER, **fields)).json()
    *chunks, done = await gateway.stream(USER, **fields)
    assert done == "[DONE]"
    assert [i for i, chunk in enumerate(chunks) if "callgate" in chunk] in ([], [len(chunks) - 1])
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"]
    return whole.get("callgate"), chunks[-1].get("callgate")


@pytest.mark.parametrize("chunk", [0, 1])
async def test_a_rescued_call_is_told(make_gateway: Callable[..., Any], chunk: int) -> None:
    async with make_gateway(Reply(BARE, chunk=chunk)) as gateway:
        expected = {"rescued_calls": [{"choice": 0, "tool_call": 0}]}
        assert await both(gateway, tools=[WEATHER]) == (expected, expected)


async def test_an_ordinary_answer_says_nothing(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(PARIS) as gateway:
        assert await both(gateway, tools=[WEATHER]) == (None, None)
        assert await both(gateway) == (None, None)


async def test_a_relaxed_schema_is_told(gateway: Gateway) -> None:
    whole, streamed = await both(gateway, tools=[ODD])
    assert whole == streamed
    (note,) = whole["relaxed_schemas"]
    assert note.startswith("tools[0].function.parameters/properties/a is not enforced")


async def test_a_legacy_function_is_named_as_the_client_named_it(gateway: Gateway) -> None:
    whole, streamed = await both(gateway, functions=[ODD["function"]])
    assert whole == streamed
    assert whole["relaxed_schemas"][0].startswith("functions[0].parameters/properties/a is not enforced")


async def test_several_choices(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(lambda request, index: BARE if index else PARIS) as gateway:
        whole = (await gateway.chat(USER, tools=[WEATHER], n=2)).json()
        assert whole["callgate"] == {"rescued_calls": [{"choice": 1, "tool_call": 0}]}
        chunks = await gateway.stream(USER, tools=[WEATHER], n=2)
        told = [(chunk["choices"][0]["index"], chunk["callgate"]) for chunk in chunks[:-1] if "callgate" in chunk]
        assert told == [(1, {"rescued_calls": [{"choice": 1, "tool_call": 0}]})]


FLAT = {"type": "function", "name": "get_weather", "parameters": WEATHER["function"]["parameters"]}
BLOCKY = {"name": "get_weather", "input_schema": WEATHER["function"]["parameters"]}
TOLD = "tools[0].{}/properties/a is not enforced"


async def other(gateway: Gateway, path: str, **fields: Any) -> tuple[Any, Any]:
    """The same of /v1/responses and /v1/messages: in the whole answer, and in the last event that has it."""
    body: dict[str, Any] = {"model": "test-model", **fields}
    body |= {"input": "hi"} if path == "/v1/responses" else {"messages": [USER], "max_tokens": 100}
    whole = (await gateway.client.post(path, json=body)).json()
    response = await gateway.client.post(path, json=body | {"stream": True})
    found = [event for event in events(response.text) if "callgate" in event or "callgate" in event.get("response", {})]
    assert [event["type"] for event in found] in ([], ["response.completed"], ["message_delta"])
    return whole.get("callgate"), (found[0].get("response", found[0]) if found else {}).get("callgate")


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize(
    ("path", "tool", "place"),
    [("/v1/responses", FLAT, {"output_index": 0}), ("/v1/messages", BLOCKY, {"content_block": 0})],
)
async def test_the_other_dialects_tell_of_rescued_calls(
    make_gateway: Callable[..., Any], path: str, tool: Any, place: Any, chunk: int
) -> None:
    async with make_gateway(Reply(BARE, chunk=chunk)) as gateway:
        assert await other(gateway, path, tools=[tool]) == ({"rescued_calls": [place]},) * 2
        assert await other(gateway, path) == (None, None)


@pytest.mark.parametrize(
    ("path", "tool", "note"),
    [
        ("/v1/responses", ODD["function"] | {"type": "function"}, TOLD.format("parameters")),
        (
            "/v1/messages",
            {"name": "f", "input_schema": ODD["function"]["parameters"]},
            TOLD.format("input_schema"),
        ),
    ],
)
async def test_the_other_dialects_tell_of_relaxed_schemas(gateway: Gateway, path: str, tool: Any, note: str) -> None:
    whole, streamed = await other(gateway, path, tools=[tool])
    assert whole == streamed
    assert whole["relaxed_schemas"][0].startswith(note)


async def test_openais_strict_stream_helper_takes_it(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(BARE, chunk=3)) as gateway:
        client = _sdk(gateway)
        async with client.chat.completions.stream(
            model="test-model", messages=[USER], tools=[WEATHER | {"type": "function"}]
        ) as stream:
            final = await stream.get_final_completion()
        (call,) = final.choices[0].message.tool_calls or []
        assert call.function.name == "get_weather"
        whole = await client.chat.completions.create(model="test-model", messages=[USER], tools=[WEATHER])
        assert (whole.model_extra or {})["callgate"]["rescued_calls"]


def _sdk(gateway: Gateway) -> AsyncOpenAI:
    transport = openai.DefaultAsyncHttpxClient
    module = importlib.import_module(transport.__mro__[1].__module__.partition(".")[0])
    client = module.AsyncClient(transport=module.ASGITransport(app=gateway.app, client=("127.0.0.1", 1)))
    return AsyncOpenAI(api_key="k", base_url="http://localhost/v1", http_client=client, max_retries=0)
