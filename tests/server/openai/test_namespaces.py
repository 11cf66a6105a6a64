"""Tools in namespaces and tools that an item of the input brings: one name to the model, both names to the client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from openai.types.responses import Response, ResponseCustomToolCall, ResponseFunctionToolCall

from tests.fakes import Reply
from tests.server.conftest import Gateway
from tests.server.openai.response_checks import check_response, check_stream
from tests.server.sse import named_events

PARAMETERS = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
FIND = {"type": "function", "name": "find", "description": "Find one.", "parameters": PARAMETERS, "strict": False}
PATCH = {"type": "custom", "name": "patch"}
CRM = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [FIND, PATCH]}
SHOP = {"type": "namespace", "name": "mcp__shop__", "description": "", "tools": [FIND]}
ADDED = {"type": "additional_tools", "role": "developer", "tools": [FIND]}


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def post(gateway: Gateway, status: int = 200, **fields: Any) -> dict[str, Any]:
    answer = await gateway.client.post("/v1/responses", json={"model": "test-model", "input": "hi", **fields})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


def declared(gateway: Gateway) -> list[str]:
    """What the model was told of."""
    prompt = gateway.engine.requests[-1].text
    found = [json.loads(line) for line in prompt.split("\n") if line.startswith('{"type": "function"')]
    return [tool["function"]["name"] for tool in found]


@pytest.mark.parametrize("chunk", [0, 1, 7])
async def test_calls_of_tools_in_namespaces(make_gateway: Callable[..., Any], chunk: int) -> None:
    text = "\n".join([call("crm__find", id="7"), call("crm__patch", input="x"), call("mcp__shop__find", id="8")])
    tools = [{"type": "web_search"}, CRM, SHOP]
    async with make_gateway(Reply(text, chunk=chunk)) as gateway:
        whole = check_response(await post(gateway, tools=tools))
        assert declared(gateway) == ["crm__find", "crm__patch", "mcp__shop__find"]
        assert "Customers." in gateway.engine.requests[-1].text
        answer = await gateway.client.post("/v1/responses", json={"input": "hi", "tools": tools, "stream": True})
    streamed = check_stream(named_events(answer.text))
    assert whole["tools"] == tools
    for response in (whole, streamed):
        first, custom, third = Response.model_validate(response).output
        assert isinstance(first, ResponseFunctionToolCall)
        assert (first.namespace, first.name, json.loads(first.arguments)) == ("crm", "find", {"id": "7"})
        assert isinstance(custom, ResponseCustomToolCall)
        assert (custom.namespace, custom.name, custom.input) == ("crm", "patch", "x")
        assert isinstance(third, ResponseFunctionToolCall)
        assert (third.namespace, third.name) == ("mcp__shop__", "find")
    names = [event["name"] for event in named_events(answer.text) if event["type"].endswith("arguments.done")]
    assert names == ["find", "find"]


async def test_their_calls_go_back(make_gateway: Callable[..., Any]) -> None:
    """As items, and as stored ones."""
    async with make_gateway(call("crm__find", id="7")) as gateway:
        first = await post(gateway, tools=[CRM])
        item = first["output"][0]
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "Ann"}
        await post(gateway, tools=[CRM], input=[{"role": "user", "content": "hi"}, item, output])
        sent = gateway.engine.requests[-1].text
        await post(gateway, tools=[CRM], input=[output], previous_response_id=first["id"])
        assert gateway.engine.requests[-1].text == sent
    assert '"name": "crm__find", "arguments": {"id": "7"}' in sent


@pytest.mark.parametrize(
    ("choice", "called"),
    [
        ({"type": "function", "name": "find", "namespace": "crm"}, ["crm__find"]),
        ({"type": "function", "name": "crm__find"}, ["crm__find"]),
        ({"type": "custom", "name": "patch"}, ["crm__patch"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "namespace", "name": "crm"}]},
         ["crm__find", "crm__patch"]),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "custom", "name": "patch"}]}, ["crm__patch"]),
    ],
)  # fmt: skip
async def test_they_can_be_chosen(make_gateway: Callable[..., Any], choice: Any, called: list[str]) -> None:
    async with make_gateway(call("crm__find", id="7")) as gateway:
        answer = await post(gateway, tools=[CRM, SHOP], tool_choice=choice)
        source = gateway.engine.requests[-1].grammar.source
    assert answer["tool_choice"] == choice
    names = ("crm__find", "crm__patch", "mcp__shop__find")
    assert [name for name in names if name in source] == called


@pytest.mark.parametrize(
    ("tools", "choice", "param"),
    [
        ([CRM, SHOP], {"type": "function", "name": "find"}, "tool_choice"),  # of two namespaces
        ([CRM], {"type": "function", "name": "find", "namespace": "gone"}, "tool_choice"),
        ([CRM, {**CRM, "description": "again"}], "auto", "tools[1].tools[0].name"),
        ([CRM, {**FIND, "name": "crm__find"}], "auto", "tools[1].name"),
        ([{**CRM, "name": ""}], "auto", "tools[0].name"),
        ([{"type": "namespace", "tools": []}], "auto", "tools[0].name"),
        ([{**CRM, "tools": None}], "auto", "tools[0].tools"),
        ([{**CRM, "tools": [5]}], "auto", "tools[0].tools[0]"),
        ([{**CRM, "tools": [{}]}], "auto", "tools[0].tools[0].type"),
        ([{**CRM, "tools": [FIND, {"type": "mcp"}]}], "auto", "tools[0].tools[1].type"),
        ([{**CRM, "tools": [{**FIND, "parameters": 5}]}], "auto", "tools[0].tools[0].parameters"),
        ([{"type": "web_search"}, {**CRM, "tools": [FIND, {**FIND, "name": "a b"}]}], "auto", "tools[1].tools[1].name"),
        ([{**CRM, "tools": [FIND] * 513}], "auto", "tools[0].tools"),
        ([CRM, {**FIND, "name": {"a": 1}}], {"type": "function", "name": "find"}, "tools[1].name"),
        ([{**CRM, "tools": [{**FIND, "name": ["x"]}]}], {"type": "function", "name": "find"}, "tools[0].tools[0].name"),
        ([{**CRM, "tools": [{**FIND, "name": ""}]}], "auto", "tools[0].tools[0].name"),
        ([{**CRM, "name": f"n{i}", "tools": [FIND] * 300} for i in range(2)], "auto", "tools"),
    ],
)
async def test_refusals_name_the_place(gateway: Gateway, tools: list[Any], choice: Any, param: str) -> None:
    assert (await post(gateway, 400, tools=tools, tool_choice=choice))["error"]["param"] == param


async def test_a_namespace_of_hosted_tools_is_ignored(gateway: Gateway) -> None:
    hosted = {**CRM, "tools": [{"type": "web_search"}]}
    assert (await post(gateway, tools=[hosted]))["tools"] == [hosted]


async def test_tools_of_an_item(make_gateway: Callable[..., Any]) -> None:
    """Also of one that is stored, and in place of an earlier one of that name."""
    user = {"role": "user", "content": "hi"}
    other = {**FIND, "description": "Another."}
    async with make_gateway(call("find", id="7")) as gateway:
        first = await post(gateway, input=[user, ADDED], tools=[{**FIND, "name": "add"}])
        assert declared(gateway) == ["add", "find"]
        assert [item["name"] for item in first["output"]] == ["find"]
        listed = (await gateway.client.get(f"/v1/responses/{first['id']}/input_items")).json()["data"]
        assert [{k: v for k, v in item.items() if k != "id"} for item in listed if "tools" in item] == [ADDED]
        await post(gateway, input=[user], previous_response_id=first["id"])
        assert declared(gateway) == ["find"]
        await post(gateway, input=[user, ADDED, {**ADDED, "tools": [other]}], tools=[FIND])
        assert declared(gateway) == ["find"]
        assert "Another." in gateway.engine.requests[-1].text
        for tools, param in (
            (None, "input[1].tools"),
            ([{**FIND, "name": "a b"}], "input[1].tools[0].name"),
            ([{**FIND, "name": {}}], "input[1].tools[0].name"),
        ):
            refused = await post(gateway, 400, input=[user, {**ADDED, "tools": tools}])
            assert refused["error"]["param"] == param


@pytest.mark.parametrize(
    ("outputs", "bound"),
    [
        ([{"output": "A"}, {"output": "B"}], {"a": "A", "b": "B"}),
        ([{"output": "B", "name": "other"}, {"output": "A", "name": "find"}], {"a": "A", "b": "B"}),
        ([{"output": "B", "call_id": "b"}, {"output": "A", "call_id": None}], {"a": "A", "b": "B"}),
    ],
)
async def test_outputs_without_the_id_of_a_call(gateway: Gateway, outputs: list[Any], bound: dict[str, str]) -> None:
    """The field is optional: they answer the first call without a result, of their name if they say one."""
    tools = [FIND, {**FIND, "name": "other"}]
    calls = [
        {"type": "function_call", "call_id": key, "name": name, "arguments": "{}"}
        for key, name in (("a", "find"), ("b", "other"))
    ]
    items = [{"role": "user", "content": "hi"}, *calls]
    results = [{"type": "function_call_output", **output} for output in outputs]
    await post(gateway, tools=tools, input=items + results)
    sent = gateway.engine.requests[-1].text
    in_order = [{"type": "function_call_output", "call_id": key, "output": text} for key, text in bound.items()]
    await post(gateway, tools=tools, input=items + in_order)
    assert gateway.engine.requests[-1].text == sent


@pytest.mark.parametrize("output", [{"output": "A"}, {"output": "A", "name": "gone"}, {"output": "A", "call_id": ""}])
async def test_an_output_that_answers_nothing_is_refused(gateway: Gateway, output: dict[str, Any]) -> None:
    done = {"type": "function_call_output", "call_id": "a", "output": "A"}
    called = {"type": "function_call", "call_id": "a", "name": "find", "arguments": "{}"}
    items = [{"role": "user", "content": "hi"}, called, done, {"type": "function_call_output", **output}]
    assert (await post(gateway, 400, tools=[FIND], input=items))["error"]["param"] == "input[3].call_id"
