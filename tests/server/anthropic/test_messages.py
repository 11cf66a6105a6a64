"""POST /v1/messages: what reaches the model, what comes back whole and streamed, what is refused and how."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine.client import EngineError, EngineUnavailable
from server.args import Secret
from tests.fakes import Reply, ScriptedEngine
from tests.live import eventually
from tests.server.anthropic.message_checks import check_message, check_stream
from tests.server.conftest import Gateway
from tests.server.sse import named_events

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "description": "d", "input_schema": SCHEMA}
ADD = {"type": "custom", "name": "add", "input_schema": {"type": "object", "properties": {"a": {}, "b": {}}}}
USER = {"role": "user", "content": "hi"}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pârïs"}}\n</tool_call>'
TWO = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 12345678901234567890}}\n</tool_call>'
ON = {"type": "enabled", "budget_tokens": 1024}
KEY = "sk-user-0123456789"


async def ask(gateway: Gateway, **fields: Any) -> Any:
    body = {"model": "test-model", "max_tokens": 1000, "messages": [USER], **fields}
    body = {key: value for key, value in body.items() if value != "absent"}
    return await gateway.client.post("/v1/messages", content=orjson.dumps(body))


async def answer(gateway: Gateway, **fields: Any) -> Any:
    response = await ask(gateway, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["request-id"] == response.headers["x-request-id"]
    return check_message(response.json())


async def stream(gateway: Gateway, **fields: Any) -> Any:
    response = await ask(gateway, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return check_stream(named_events(response.text))


async def prompt(gateway: Gateway, **fields: Any) -> str:
    fields.setdefault("thinking", {"type": "adaptive"})
    await answer(gateway, **fields)
    return gateway.engine.requests[-1].text or ""


ANSWERS = {
    "text": ("Sunny, 21 °C.", ["text"], "end_turn"),
    "nothing": ("", [], "end_turn"),
    "call": (CALL, ["tool_use"], "tool_use"),
    "calls": (f"Look.\n{CALL}\n{TWO}", ["text", "tool_use", "tool_use"], "tool_use"),
    "thought": ("<think>\nHm.\n</think>\n\nSunny.", ["thinking", "text"], "end_turn"),
    "thought and call": (f"<think>\nHm.\n</think>\n\n{CALL}", ["thinking", "tool_use"], "tool_use"),
}


@pytest.mark.parametrize("chunk", [0, 1, 3])
@pytest.mark.parametrize(("text", "kinds", "reason"), ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_stream_says_what_the_whole_answer_says(
    make_gateway: Callable[..., Any], text: str, kinds: list[str], reason: str, chunk: int
) -> None:
    async with make_gateway(Reply(text, chunk=chunk, cached_tokens=7)) as gateway:
        streamed = await stream(gateway, tools=[WEATHER, ADD], thinking=ON)
        whole = await answer(gateway, tools=[WEATHER, ADD], thinking=ON)
        silent = await answer(gateway, tools=[WEATHER, ADD], thinking={**ON, "display": "omitted"})
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == reason
    drop = {"id"}
    for one, other in zip(streamed.pop("content"), whole.pop("content"), strict=True):
        assert {k: v for k, v in one.items() if k not in drop} == {k: v for k, v in other.items() if k not in drop}
        if "id" in one:
            assert one["id"] != other["id"]
    assert {k: v for k, v in streamed.items() if k != "id"} == {k: v for k, v in whole.items() if k != "id"}
    assert whole["usage"]["cache_read_input_tokens"] == 7
    assert [block["type"] for block in silent["content"]] == [kind for kind in kinds if kind != "thinking"]


async def test_big_numbers_of_arguments_survive(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(TWO) as gateway:
        assert "12345678901234567890}" in (await ask(gateway, tools=[ADD])).text


@pytest.mark.parametrize("limit", [1, 8, 30, 60, 90])
async def test_max_tokens(make_gateway: Callable[..., Any], limit: int) -> None:
    async with make_gateway(Reply(f"Look.\n{CALL}\n{TWO}", chunk=1)) as gateway:
        streamed = await stream(gateway, tools=[WEATHER, ADD], max_tokens=limit)
        whole = await answer(gateway, tools=[WEATHER, ADD], max_tokens=limit)
    assert streamed["stop_reason"] == whole["stop_reason"] == "max_tokens"
    assert all(block["type"] == "text" or block["input"] == {"city": "Pârïs"} for block in whole["content"])
    kept = [block for block in streamed["content"] if "broken" not in block]
    assert [block["type"] for block in kept] == [block["type"] for block in whole["content"]]
    assert whole["usage"]["output_tokens"] == limit


async def test_stop_sequences(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("one two three") as gateway:
        for body in (
            await answer(gateway, stop_sequences=["zero", "two"]),
            await stream(gateway, stop_sequences=["zero", "two"]),
        ):
            assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "two")
            assert body["content"] == [{"type": "text", "text": "one "}]
        assert (await answer(gateway, stop_sequences=["four"]))["stop_reason"] == "end_turn"


async def test_sampling_reaches_the_engine(gateway: Gateway) -> None:
    await answer(gateway, temperature=0.5, top_p=0.9, top_k=7, seed=3, max_tokens=100_000, metadata={"user_id": "u"})
    sampling = gateway.engine.requests[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0.5, 0.9, 7, 3)
    assert sampling.max_tokens == gateway.engine.model_info.context_length


def tool_use(name: str = "f", call_id: str = "toolu_1", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(content: Any, call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


CALLED = '\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CONVERSATIONS: list[tuple[str, dict[str, Any], str]] = [
    ("a string", {}, turn("user", "hi")),
    ("a system", {"system": "Be kind."}, turn("system", "Be kind.") + turn("user", "hi")),
    ("system blocks", {"system": [text("Be kind."), text("Be brief.")]}, turn("system", "Be kind.\n\nBe brief.") + turn("user", "hi")),
    ("blocks", {"messages": [{"role": "user", "content": [text("a"), text("b")]}]}, turn("user", "a\n\nb")),
    ("one role twice", {"messages": [USER, USER]}, turn("user", "hi\n\nhi")),
    ("a tool loop", {"messages": [
        USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "x"}, text("Look."), tool_use(a=1)]},
        {"role": "user", "content": [result([text("one"), text("two")]), text("Go on.")]}]},
     turn("user", "hi") + turn("assistant", "Look." + CALLED) + turn("tool", "one\n\ntwo") + turn("user", "Go on.")),
    ("an error", {"messages": [USER, {"role": "assistant", "content": [tool_use(a=1)]}, {"role": "user", "content": [result("no file", is_error=True)]}]},
     turn("user", "hi") + turn("assistant", CALLED) + turn("tool", "Error: no file")),
    ("an error that says so", {"messages": [USER, {"role": "assistant", "content": [tool_use(a=1)]}, {"role": "user", "content": [result("ERROR 5", is_error=True)]}]},
     turn("user", "hi") + turn("assistant", CALLED) + turn("tool", "ERROR 5")),
    ("nothing came back", {"messages": [USER, {"role": "assistant", "content": [tool_use(a=1)]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]},
     turn("user", "hi") + turn("assistant", CALLED) + turn("tool", "")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"), [row[1:] for row in CONVERSATIONS], ids=[row[0] for row in CONVERSATIONS]
)
async def test_messages_become_the_conversation(gateway: Gateway, fields: Any, expected: str) -> None:
    assert await prompt(gateway, **fields) == expected + "<|im_start|>assistant\n"


async def test_the_beginning_of_an_answer_is_continued(gateway: Gateway) -> None:
    messages = [USER, {"role": "assistant", "content": "The answer is"}]
    assert await prompt(gateway, messages=messages) == turn("user", "hi") + "<|im_start|>assistant\nThe answer is"


@pytest.mark.parametrize(
    ("thinking", "asked"),
    [(None, False), ({"type": "disabled"}, False), ({"type": "adaptive"}, True), ({"type": "enabled", "budget_tokens": 1024}, True)],
)  # fmt: skip
async def test_thinking_is_asked_of_the_template(make_gateway: Callable[..., Any], thinking: Any, asked: bool) -> None:
    async with make_gateway("<think>\nhm\n</think>\n\nYes.") as gateway:
        body = await answer(gateway, thinking=thinking)
    assert (gateway.engine.requests[-1].text or "").endswith("</think>\n\n") is not asked
    assert [block["type"] for block in body["content"]][: 1 + asked] == ["thinking", "text"][1 - asked :]


async def test_tool_choice(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(f"{CALL}\n{TWO}") as gateway:
        tools = [WEATHER, {"type": "web_search_20250305", "name": "web_search"}, ADD]
        assert len((await answer(gateway, tools=tools))["content"]) == 2
        single = {"type": "auto", "disable_parallel_tool_use": True}
        assert len((await answer(gateway, tools=tools, tool_choice=single))["content"]) == 1
        assert len((await stream(gateway, tools=tools, tool_choice=single))["content"]) == 1
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
            await answer(gateway, tools=tools, tool_choice=choice)
            assert gateway.engine.requests[-1].grammar is not None
            assert not gateway.engine.requests[-1].grammar.triggers
        plain = await answer(gateway, tools=tools, tool_choice={"type": "none"})
        assert [block["type"] for block in plain["content"]] == ["text"]
        assert "get_weather" not in (gateway.engine.requests[-1].text or "")


async def test_structured_output(gateway: Gateway) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"only_here": {"type": "string"}}}}
    for fields in ({"output_config": {"format": form, "effort": "low"}}, {"output_format": form}):
        await answer(gateway, **fields)
        grammar = gateway.engine.requests[-1].grammar
        assert grammar is not None
        assert "only_here" in grammar.source


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/a"}}
CALLING = {"role": "assistant", "content": [tool_use(a=1)]}
BAD_STRICT = {"type": "object", "properties": {"a": {"const": "uncompilable"}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [text("a"), IMAGE]}]}, "messages[0].content[1].type"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [tool_use()]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    ({"messages": [USER, CALLING, {"role": "user", "content": [result([{"type": "container"}])]}]}, "messages[2].content[0].content[0].type"),
    ({"messages": [USER, {"role": "user", "content": [result("x")]}]}, "messages[1].content[0].tool_use_id"),
    ({"messages": [USER, {"role": "assistant", "content": [{**tool_use(), "input": "{}"}]}]}, "messages[1].content[0].input"),
    ({"messages": [USER, {"role": "assistant", "content": [{**tool_use(), "name": ""}]}]}, "messages[1].content[0]"),
    ({"messages": [USER, CALLING]}, "messages"), ({"messages": [{"role": "user", "content": "long " * 5000}]}, "messages"),
    ({"system": [IMAGE]}, "system[0].type"), ({"system": 5}, "system"),
    ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": None}, "max_tokens"),
    ({"temperature": 3}, "temperature"), ({"stop_sequences": ["x" * 1025]}, "stop_sequences"), ({"stop_sequences": "x"}, "stop_sequences"),
    ({"thread": {"type": "create"}}, "thread"), ({"container": "c"}, "container"), ({"compaction": {"type": "enabled"}}, "compaction"), ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"thinking": {"type": "on"}}, "thinking.type"), ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"), ({"output_config": {"effort": "vast"}}, "output_config.effort"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "objekt"}}}}, "output_config.format.schema"),
    ({"output_format": {"type": "json_schema"}}, "output_format"),
    ({"tools": ["x"]}, "tools[0]"), ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"type": "x"}, {**WEATHER, "name": "a b"}]}, "tools[1].name"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].type"), ({"fallbacks": [{"model": "m"}]}, "fallbacks"),
    ({"tools": [{"type": "x"}, {**WEATHER, "strict": True, "input_schema": BAD_STRICT}]}, "tools[1].input_schema"),
    ({"tools": [{"type": "x"}, {**WEATHER, "strict": True, "input_schema": {"type": "objekt"}}]}, "tools[1].input_schema"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "required"}}, "tool_choice"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [WEATHER], "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1}}, "tool_choice.disable_parallel_tool_use"),
    ({"cache_salt": "!"}, "cache_salt"), ({"model": None}, "model"),
]  # fmt: skip


async def test_refusals_name_the_field(gateway: Gateway) -> None:
    problems = []
    for fields, param in REFUSED:
        for streamed in (False, True):
            response = await ask(gateway, **fields, stream=streamed)
            body = response.json() if response.status_code == 400 else {"error": {"param": response.text}}
            shape = (body.get("type"), body["error"].get("type")) == ("error", "invalid_request_error")
            ours = any(name in str(body) for name in ("function.parameters", "response_format"))
            if body["error"]["param"] != param or not shape or ours:
                problems.append((param, fields, body))
    assert not problems
    assert gateway.engine.running == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}},
        {"fallbacks": "default"},
        {"billing_policy": {"type": "billing_policy", "bill_to": "self"}},
        {"output_config": {"task_budget": {"type": "tokens", "total": 20000}}},
    ],
)
async def test_what_coding_agents_always_send_changes_nothing(gateway: Gateway, fields: dict[str, Any]) -> None:
    assert await prompt(gateway, **fields) == await prompt(gateway)


async def test_what_is_missing_is_named(gateway: Gateway) -> None:
    for name in ("max_tokens", "messages"):
        response = await ask(gateway, **{name: "absent"})
        assert response.status_code == 400
        assert name in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (EngineUnavailable("full", retry_after=2), 503, "overloaded_error"),
        (EngineError("many", status=429), 429, "rate_limit_error"),
        (EngineError("bad", status=400), 400, "invalid_request_error"),
        (RuntimeError("boom"), 500, "api_error"),
    ],
)
async def test_engine_failures(make_gateway: Callable[..., Any], error: Exception, status: int, kind: str) -> None:
    async with make_gateway(Reply(error=error)) as gateway:
        for streamed in (False, True):
            response = await ask(gateway, stream=streamed)
            assert (response.status_code, response.json()["error"]["type"]) == (status, kind)
            assert ("retry-after" in response.headers) == (status in (429, 503))
            assert response.json()["request_id"] == response.headers["request-id"]
            assert "boom" not in response.text


async def test_a_failure_in_the_stream_is_an_error_event(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello world", chunk=1, fail_after=3)) as gateway:
        events = named_events((await ask(gateway, stream=True)).text)
        assert (await ask(gateway)).status_code == 503
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "overloaded_error"
    assert events[-1]["error"]["message"] == "The engine process died."
    assert "message_stop" not in [event["type"] for event in events]


async def test_a_failure_after_a_slow_start_is_an_error_event(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello", first_delay=0.3, fail_after=0), stream_start_timeout=0.05) as gateway:
        response = await ask(gateway, stream=True)
    assert response.status_code == 200
    assert [event["type"] for event in named_events(response.text)] == ["error"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_leaving_aborts_the_generation(make_gateway: Callable[..., Any], streamed: bool) -> None:
    engine = ScriptedEngine(Reply("Hello world", chunk=1, hang_after=4))
    async with make_gateway(engine) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=streamed))
        await eventually(lambda: engine.running == 1)
        asking.cancel()
        await eventually(lambda: engine.aborted == 1)
    assert engine.running == 0


async def test_silence_is_filled_with_pings(make_gateway: Callable[..., Any]) -> None:
    pace = {"stream_start_timeout": 0.05, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.04}
    async with make_gateway(Reply("Hello world", chunk=4, delay=0.15), **pace) as gateway:
        events = named_events((await ask(gateway, stream=True)).text)
    assert sum(event["type"] == "ping" for event in events) >= 3
    check_stream(events)


async def test_errors_of_the_edge_have_this_dialects_shape(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(api_keys=(Secret(KEY),), max_body_bytes=1000) as gateway:
        client, good = gateway.client, {"x-api-key": KEY}
        for response, status, kind in (
            (await client.post("/v1/messages", json={}), 401, "authentication_error"),
            (await client.post("/v1/messages", content=b"{", headers=good), 400, "invalid_request_error"),
            (await client.post("/v1/messages", content=b"x" * 2000, headers=good), 413, "request_too_large"),
            (await client.get("/v1/messages", headers=good), 405, "invalid_request_error"),
            (await client.post("/v1/messages/batches", json={}, headers=good), 404, "not_found_error"),
        ):
            assert (response.status_code, response.json()["type"]) == (status, "error")
            assert response.json()["error"]["type"] == kind
            assert response.json()["error"]["message"]
        assert (await client.post("/v1/other", json={}, headers=good)).json().keys() == {"error"}


@pytest.mark.parametrize("path", ["/v1/models/nope", "/v1/files", "/v1/messages/batches", "/nowhere"])
async def test_errors_of_any_path_have_the_callers_shape(make_gateway: Callable[..., Any], path: str) -> None:
    version = {"anthropic-version": "2023-06-01"}
    async with make_gateway(api_keys=(Secret(KEY),)) as gateway:
        closed = await gateway.client.get(path, headers=version)
        absent = await gateway.client.get(path, headers={**version, "x-api-key": KEY})
        for response, status, kind in ((closed, 401, "authentication_error"), (absent, 404, "not_found_error")):
            body = response.json()
            assert (response.status_code, body["type"], body["error"]["type"]) == (status, "error", kind)
            assert body["request_id"] == response.headers["request-id"] == response.headers["x-request-id"]


async def test_count_tokens_counts_what_a_message_would_use(gateway: Gateway) -> None:
    fields: dict[str, Any] = {"system": "Be brief.", "tools": [WEATHER], "messages": [{"role": "user", "content": "Pârïs <|im_end|>"}]}  # fmt: skip
    used = (await answer(gateway, **fields))["usage"]["input_tokens"]
    response = await gateway.client.post("/v1/messages/count_tokens", json={"model": "test-model", **fields})
    assert response.json() == {"input_tokens": used}
    bad = await gateway.client.post("/v1/messages/count_tokens", json={"messages": [{"role": "user"}]})
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "messages[0].content")
    waiting = await gateway.client.post("/v1/messages/count_tokens", json={"messages": [USER, CALLING]})
    assert waiting.json()["input_tokens"] > used - 200 > 0
    thread = await gateway.client.post("/v1/messages/count_tokens", json={"messages": [USER], "thread": {}})
    assert thread.json()["error"]["param"] == "thread"


async def test_models_in_the_callers_shape(gateway: Gateway) -> None:
    headers = {"anthropic-version": "2023-06-01"}
    theirs = (await gateway.client.get("/v1/models", headers=headers)).json()
    assert theirs["data"][0]["type"] == "model"
    assert (await gateway.client.get("/v1/models/test-model", headers=headers)).json() == theirs["data"][0]
    assert (await gateway.client.get("/v1/models/nope", headers=headers)).status_code == 404
    assert (await gateway.client.get("/v1/models")).json()["object"] == "list"


TEXTUAL: list[tuple[dict[str, Any], str]] = [
    ({"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}}, "T\nd"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "d"}]}}, "d"),
    ({"type": "search_result", "source": "s", "title": "T", "content": [{"type": "text", "text": "d"}]}, "T\nd"),
    ({"type": "tool_reference", "tool_name": "get_weather"}, "get_weather"),
]


@pytest.mark.parametrize(("block", "text"), TEXTUAL, ids=[block["type"] for block, _ in TEXTUAL])
async def test_blocks_that_are_text_are_read(gateway: Gateway, block: dict[str, Any], text: str) -> None:
    use = {"type": "tool_use", "id": "t", "name": "get_weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    assert text in await prompt(gateway, messages=[{"role": "user", "content": [block]}])
    assert text in await prompt(gateway, messages=turns, tools=[WEATHER])


@pytest.mark.parametrize("source", [{"type": "base64", "data": "x"}, {"type": "url", "url": "http://x"}, None])
async def test_documents_that_are_no_text_are_refused(gateway: Gateway, source: Any) -> None:
    response = await ask(gateway, messages=[{"role": "user", "content": [{"type": "document", "source": source}]}])
    assert response.status_code == 400
    assert "messages[0].content[0].type" in response.json()["error"]["message"]
