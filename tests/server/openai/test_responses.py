"""POST /v1/responses without streaming: what reaches the model, what comes back, what is refused and how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine.client import EngineError, EngineUnavailable
from tests.fakes import Reply, ScriptedEngine
from tests.server.conftest import Gateway
from tests.server.openai.response_checks import check_response

USER = {"type": "message", "role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "parameters": SCHEMA}
STRICT = {"type": "object", "properties": {"a": {"const": "uncompilable"}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'


async def ask(gateway: Gateway, **fields: Any) -> Any:
    body = {"model": "test-model", "input": "hi", **fields}
    return await gateway.client.post("/v1/responses", content=orjson.dumps(body))


async def answer(gateway: Gateway, **fields: Any) -> Any:
    response = await ask(gateway, **fields)
    assert response.status_code == 200, response.text
    return check_response(response.json())


async def prompt(gateway: Gateway, **fields: Any) -> str:
    await answer(gateway, **fields)
    return gateway.engine.requests[-1].text or ""


async def test_text(gateway: Gateway) -> None:
    body = await answer(gateway, temperature=0.5, metadata={"a": "b"}, max_output_tokens=100, user="me")
    assert [item["type"] for item in body["output"]] == ["message"]
    assert body["output"][0]["content"][0]["text"] == "Hello!"
    assert (body["status"], body["temperature"], body["top_p"]) == ("completed", 0.5, 1.0)
    assert (body["metadata"], body["max_output_tokens"], body["user"]) == ({"a": "b"}, 100, "me")
    assert body["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
    assert gateway.engine.requests[0].sampling.max_tokens == 100


async def test_calls_have_ids_of_their_own(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(f"{CALL}\n{CALL}") as gateway:
        bodies = [await answer(gateway, tools=[WEATHER]) for _ in range(2)]
    calls = [item for body in bodies for item in body["output"]]
    assert len({call["call_id"] for call in calls}) == len({call["id"] for call in calls}) == 4
    assert all(orjson.loads(call["arguments"]) == {"city": "Paris"} for call in calls)
    assert bodies[0]["tools"] == [{"strict": False, "description": None, **WEATHER}]


ITEMS: list[tuple[str, Any, str]] = [
    ("a string", "hi", "<|im_start|>user\nhi<|im_end|>\n"),
    ("parts", [{"role": "user", "content": [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]}], "<|im_start|>user\nhi<|im_end|>\n"),
    ("developer", [{"role": "developer", "content": "be brief"}, USER], "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
    ("answer of ours", [USER, {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [{"type": "output_text", "text": "ho", "annotations": [], "logprobs": []}]}, USER],
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nho<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"),
    ("calls", [USER, {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
               {"type": "message", "role": "assistant", "content": "Look."},
               {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "status": "completed"},
               {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
               {"type": "function_call_output", "call_id": "c1", "output": "one"}],
     '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nLook.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call><|im_end|>\n<|im_start|>tool\none<|im_end|>\n<|im_start|>tool\ntwo<|im_end|>\n'),
    ("custom call", [USER, {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "+x"}, {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}],
     '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n{"name": "patch", "arguments": {"input": "+x"}}\n</tool_call><|im_end|>\n<|im_start|>tool\nok<|im_end|>\n'),
]  # fmt: skip


@pytest.mark.parametrize(("items", "expected"), [row[1:] for row in ITEMS], ids=[row[0] for row in ITEMS])
async def test_input_becomes_the_conversation(gateway: Gateway, items: Any, expected: str) -> None:
    assert await prompt(gateway, input=items) == expected + "<|im_start|>assistant\n"


async def test_instructions_come_first(gateway: Gateway) -> None:
    text = await prompt(gateway, instructions="Be kind.", input=[{"role": "system", "content": "Be brief."}, USER])
    assert text.startswith("<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>\n<|im_start|>user\n")


async def test_special_tokens_of_clients_stay_text(gateway: Gateway) -> None:
    await answer(gateway, input="<|im_end|>", instructions="<|im_start|>")
    request = gateway.engine.requests[-1]
    ids = gateway.engine.tokenizer.encode(request.text or "", guard=request.guard)
    assert ids.count(257) == 2


async def test_effort_reaches_the_template(gateway: Gateway) -> None:
    assert (await prompt(gateway, reasoning={"effort": "none"})).endswith("<think>\n\n</think>\n\n")
    assert not (await prompt(gateway, reasoning={"effort": "low", "summary": "auto"})).endswith("</think>\n\n")
    assert (await answer(gateway, reasoning={}))["reasoning"] == {"effort": None, "summary": None}


async def test_other_tools_are_echoed_and_ignored(make_gateway: Callable[..., Any]) -> None:
    others = [
        {"type": "web_search", "external_web_access": True},
        {"type": "file_search", "vector_store_ids": ["x"]},
    ]
    async with make_gateway(CALL) as gateway:
        body = await answer(gateway, tools=[*others, WEATHER])
        assert [item["name"] for item in body["output"]] == ["get_weather"]
        assert body["tools"][:2] == others
        text = (await answer(gateway, tools=others, tool_choice="auto"))["output"]
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}, {"type": "function", "name": "get_weather"}]}  # fmt: skip
        await answer(gateway, tools=[*others, WEATHER], tool_choice=choice)
    assert text[0]["type"] == "message"
    assert gateway.engine.requests[-1].grammar is not None


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "get_weather"}, {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}]
)  # fmt: skip
async def test_a_forced_call_is_a_call_whatever_the_text_format(make_gateway: Callable[..., Any], choice: Any) -> None:
    """instructor sends both; the grammar must leave no way to answer with the document."""
    text = {"format": {"type": "json_schema", "name": "w", "strict": True, "schema": {"type": "object", "properties": {"only_in_document": {}}, "required": ["only_in_document"], "additionalProperties": False}}}  # fmt: skip
    async with make_gateway(CALL) as gateway:
        await answer(gateway, tools=[WEATHER], tool_choice=choice, text=text)
        assert "only_in_document" not in gateway.engine.requests[-1].grammar.source
        await answer(gateway, tools=[WEATHER], text=text)
        assert "only_in_document" in gateway.engine.requests[-1].grammar.source


async def test_text_formats(gateway: Gateway) -> None:
    for form in ({"type": "json_object"}, {"type": "json_schema", "name": "w", "schema": SCHEMA}):
        body = await answer(gateway, text={"format": form})
        assert body["text"]["format"] == form
        assert gateway.engine.requests[-1].grammar is not None
    nested = {"type": "json_schema", "json_schema": {"name": "w", "schema": {"properties": {"only_here": {}}}}}
    await answer(gateway, text={"format": nested})
    assert "only_here" in gateway.engine.requests[-1].grammar.source, "chat's form is read, not taken for no schema"
    for text in (None, {}, {"format": {"type": "text"}}, {"verbosity": "low"}):
        await answer(gateway, text=text)
        assert gateway.engine.requests[-1].grammar is None
    await answer(gateway, structured_outputs={"choice": ["a"]})
    grammar = gateway.engine.requests[-1].grammar
    assert grammar is not None
    assert 'start: "a"' in grammar.source, "the choice, after reasoning that may come first"


ODD_BUT_FINE: list[dict[str, Any]] = [
    {"text": {"format": {"type": "json_schema", "json_schema": {"name": "w", "schema": SCHEMA}}}},
    {"text": {"format": {"type": "json_schema", "schema": SCHEMA, "strict": None, "description": None}}},
    {"text": {"format": {"type": "json_schema"}}},
    {"text": {"format": None}},
    {"tool_choice": {"type": "function", "function": {"name": "get_weather"}}},
    {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "function", "name": "get_weather"}]}},
    {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}},
    {"tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g", "parameters": None, "strict": None}]},
    {"reasoning": {"effort": None, "summary": None, "generate_summary": None}}, {"reasoning": {}},
    {"truncation": "auto", "include": [], "metadata": None, "user": None, "top_logprobs": None, "service_tier": None},
]  # fmt: skip


@pytest.mark.parametrize("fields", ODD_BUT_FINE)
async def test_what_is_echoed_is_typed(make_gateway: Callable[..., Any], fields: dict[str, Any]) -> None:
    """``answer`` validates strictly: what is accepted in another spelling comes back in the documented one."""
    async with make_gateway(CALL) as gateway:
        await answer(gateway, **{"tools": [WEATHER], **fields})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": 5}, "input"), ({"input": None}, "input"), ({"input": []}, "input"), ({"input": ["x"]}, "input[0]"),
    ({"input": [{"type": "rocket"}]}, "input[0].type"), ({"input": [{}]}, "input[0].type"),
    ({"input": [USER, {"type": "item_reference"}]}, "input[1].id"), ({"input": [USER, {"type": "item_reference", "id": 5}]}, "input[1].id"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://127.0.0.1:1/a"}]}]}, "input[0].content[0].type"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[1].call_id"),
    ({"input": [USER, {"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[1].output"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"}]}, "input[0].name"),
    ({"input": [{"type": "reasoning", "content": [{"type": "reasoning_text"}]}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"reasoning": {"generate_summary": 5}}, "reasoning.generate_summary"),
    ({"background": True, "store": False}, "background"), ({"background": "x"}, "background"), ({"conversation": {"id": 5}}, "conversation.id"), ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"), ({"prompt": {"id": "p"}}, "prompt"),
    ({"thread": {"type": "create"}}, "thread"), ({"max_tokens": 5}, "max_tokens"), ({"n": 2}, "n"),
    ({"response_format": {"type": "json_object"}}, "response_format"), ({"messages": [USER]}, "messages"),
    ({"max_output_tokens": -1}, "max_output_tokens"), ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"), ({"top_logprobs": 21}, "top_logprobs"), ({"truncation": "most"}, "truncation"),
    ({"reasoning": {"effort": "vast"}}, "reasoning.effort"), ({"reasoning": 5}, "reasoning"), ({"store": "yes"}, "store"),
    ({"previous_response_id": "resp_of_nobody"}, "previous_response_id"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"), ({"text": {"format": "json"}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "objekt"}}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": STRICT}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}}}, "text.format.json_schema.schema"),
    ({"tools": ["x"]}, "tools[0]"), ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1:1"}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}, {"type": "function", "name": "a b"}]}, "tools[1].name"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": 5}]}, "tools[1].parameters"),
    ({"tools": [{"type": "web_search"}, WEATHER | {"strict": True}]}, "tools[1].parameters"),
    ({"tools": [{"type": "x"}, WEATHER | {"parameters": STRICT, "strict": True}]}, "tools[1].parameters"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tools": [{"type": "x"}], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}}, "tool_choice"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"), ({"include": [5]}, "include[0]"),
    ({"input": "long " * 5000}, "input"), ({"model": None}, "model"),
    ({"text": {"format": {"type": "json_object"}}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
]  # fmt: skip


async def test_refusals_name_the_field(gateway: Gateway) -> None:
    problems = []
    for fields, param in REFUSED:
        for streamed in (False, True):
            if streamed and "stream_options" in fields:
                continue
            response = await ask(gateway, **fields, stream=streamed)
            error = response.json()["error"] if response.status_code == 400 else {"param": response.text, "message": ""}
            ours = "function.parameters" in error["message"] or "response_format" in error["message"]
            if error["param"] != param or (ours and param != "response_format"):
                problems.append((param, fields, error))
    assert not problems
    assert gateway.engine.running == 0


async def test_unknown_model_and_missing_input(gateway: Gateway) -> None:
    response = await ask(gateway, model="gpt-nope")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")
    response = await gateway.client.post("/v1/responses", json={"model": "test-model"})
    assert response.status_code == 400
    assert "input" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status"),
    [(EngineUnavailable("full", retry_after=2), 503), (EngineError("many", status=429), 429), (EngineError("bad", status=400), 400), (RuntimeError("boom"), 500)],
)  # fmt: skip
async def test_engine_failures(make_gateway: Callable[..., Any], error: Exception, status: int) -> None:
    async with make_gateway(Reply(error=error)) as gateway:
        for streamed in (False, True):
            response = await ask(gateway, stream=streamed)
            assert response.status_code == status
            assert ("retry-after" in response.headers) == (status in (429, 503))
            assert "boom" not in response.text


async def test_a_late_failure_of_a_whole_answer_is_an_error(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello world", chunk=1, fail_after=3)) as gateway:
        assert (await ask(gateway)).status_code == 503


async def test_input_tokens_counts_what_a_response_would_use(gateway: Gateway) -> None:
    fields = {"instructions": "Be brief.", "tools": [WEATHER], "input": "Weather in Pârïs? <|im_end|>"}
    used = (await answer(gateway, **fields))["usage"]["input_tokens"]
    response = await gateway.client.post("/v1/responses/input_tokens", json={"model": "test-model", **fields})
    assert response.json() == {"object": "response.input_tokens", "input_tokens": used}
    bad = await gateway.client.post("/v1/responses/input_tokens", json={"input": [{"type": "rocket"}]})
    assert bad.json()["error"]["param"] == "input[0].type"


async def test_every_answer_is_its_own_under_load(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(
        lambda request, index: Reply((request.text or "")[-30:-15], chunk=2, delay=0.001)
    ) as gateway:
        names = [f"{number:09d}" for number in range(40)]
        bodies = await asyncio.gather(*(answer(gateway, input=f"number {name}") for name in names))
    assert len({body["id"] for body in bodies}) == 40
    assert gateway.engine.running == 0
    assert isinstance(gateway.engine, ScriptedEngine)


async def test_input_may_be_missing_after_a_stored_response(gateway: Gateway) -> None:
    first = await answer(gateway)
    for fields in ({}, {"input": None}):
        body = {"model": "test-model", "previous_response_id": first["id"], **fields}
        assert (await gateway.client.post("/v1/responses", json=body)).status_code == 200
        refused = await gateway.client.post("/v1/responses", json={"model": "test-model", **fields})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "missing_required_parameter", "input")


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "get_weather"}])
async def test_tools_in_chats_form_are_the_same_tools(make_gateway: Callable[..., Any], choice: Any) -> None:
    """At the top, in namespaces and in items; the answer has them in the form of Responses."""
    nested = {"type": "function", "function": {key: value for key, value in WEATHER.items() if key != "type"}}
    bodies, asked = [], []
    async with make_gateway(CALL) as gateway:
        for tool in (WEATHER, nested):
            bodies.append(await answer(gateway, tools=[tool], tool_choice=choice))
            asked.append((gateway.engine.requests[-1].text, gateway.engine.requests[-1].grammar))
        item = {"type": "additional_tools", "tools": [nested]}
        await answer(gateway, input=[item, USER], tool_choice=choice)
        asked.append((gateway.engine.requests[-1].text, gateway.engine.requests[-1].grammar))
        broken = {"type": "function", "function": {**nested["function"], "name": "a b"}}
        error = (await ask(gateway, tools=[broken])).json()["error"]
    assert bodies[0]["tools"] == bodies[1]["tools"]
    assert bodies[0]["output"][0]["name"] == bodies[1]["output"][0]["name"] == "get_weather"
    assert asked[0] == asked[1] == asked[2]
    assert error["param"] == "tools[0].function.name"


@pytest.mark.parametrize("output", [None, {"temperature": 20}, [], ""])
async def test_results_and_arguments_are_read_as_on_chat(gateway: Gateway, output: Any) -> None:
    call = {"name": "get_weather", "arguments": {"city": "Paris"}}
    items = [USER, {"type": "function_call", "call_id": "c", **call}, {"type": "function_call_output", "call_id": "c"}]
    if output is not None:
        items[-1]["output"] = output
    text = await prompt(gateway, input=items)
    calls = [{"id": "c", "type": "function", "function": call}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    await gateway.chat(USER, said, {"role": "tool", "tool_call_id": "c", "content": output})
    assert text == gateway.engine.requests[-1].text
