"""Histories as real clients send them, and those that must be refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Gateway
from tests.server.test_chat import USER, WEATHER

CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Lima"}'}}
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "18 C"}

GOOD: dict[str, list[Any]] = {
    "null content": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
    "empty content": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT],
    "absent content": [USER, {"role": "assistant", "tool_calls": [CALL]}, RESULT],
    "sdk leftovers": [
        USER,
        {
            "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "parsed": None,
            "function_call": None,
            "tool_calls": [{**CALL, "index": 0, "function": {**CALL["function"], "parsed_arguments": {"city": "Lima"}}}],
        },
        RESULT,
    ],
    "tool parts and name": [
        USER, {"role": "assistant", "tool_calls": [CALL]},
        {**RESULT, "name": "get_weather", "content": [{"type": "text", "text": "18 "}, {"type": "text", "text": "C"}]},
    ],
    "qwen-agent": [
        USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "18 C", "name": "get_weather", "id": "call_1", "extra": {"function_id": "call_1"}},
    ],
    "null tool content": [USER, {"role": "assistant", "tool_calls": [CALL]}, {**RESULT, "content": None}],
    "arguments object": [
        USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": {"city": "Lima"}}}]}, RESULT,
    ],
    "broken arguments": [
        USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Li'}}]}, RESULT,
    ],
    "empty tool_calls": [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER],
    "parts everywhere": [
        {"role": "system", "content": [{"type": "text", "text": "s"}]},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "c"}]}, USER,
    ],
    "developer": [{"role": "developer", "content": "be brief"}, {"role": "developer", "content": "be kind"}, USER],
    "names": [{"role": "system", "name": "s", "content": "x"}, {"role": "user", "name": "u", "content": "x"}, {"role": "assistant", "name": "model", "content": "y"}, USER],
    "empty user": [{"role": "user", "content": ""}],
    "unknown keys": [{**USER, "id": "msg_1", "status": "completed", "x": {"y": 1}}],
}  # fmt: skip


@pytest.mark.parametrize("messages", GOOD.values(), ids=GOOD.keys())
async def test_accepted(gateway: Gateway, messages: list[Any]) -> None:
    response = await gateway.chat(*messages, tools=[WEATHER])
    assert response.status_code == 200, response.text
    prompt = gateway.engine.requests[0].text or ""
    assert "None" not in prompt
    if any(message.get("tool_calls") for message in messages):
        assert "get_weather" in prompt


BAD: dict[str, tuple[Any, str]] = {
    "empty": ([], "messages"),
    "number": ([5], "messages[0]"),
    "list": ([[USER]], "messages[0]"),
    "no role": ([{"content": "x"}], "messages[0].role"),
    "odd role": ([{"role": "robot", "content": "x"}], "messages[0].role"),
    "number role": ([{"role": 1, "content": "x"}], "messages[0].role"),
    "no content": ([USER, {"role": "user"}], "messages[1].content"),
    "null system": ([{"role": "system", "content": None}], "messages[0].content"),
    "object content": ([{"role": "user", "content": {"text": "x"}}], "messages[0].content"),
    "part without type": ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
    "null text": ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
    "number part": ([{"role": "user", "content": [5]}], "messages[0].content[0]"),
    "image": ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/"}}]}], "messages[0].content[0].type"),
    "audio": ([{"role": "user", "content": [{"type": "input_audio"}]}], "messages[0].content[0].type"),
    "orphan result": ([USER, RESULT], "messages[1]"),
    "tool_calls string": ([USER, {"role": "assistant", "tool_calls": "x"}], "messages[1].tool_calls"),
    "tool_calls null item": ([USER, {"role": "assistant", "tool_calls": [None]}], "messages[1].tool_calls[0]"),
    "call without function": ([USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[1].tool_calls[0].function"),
    "number arguments": ([USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": 5}}]}], "messages[1].tool_calls[0].function.arguments"),
    "number id": ([USER, {"role": "assistant", "tool_calls": [{**CALL, "id": 5}]}], "messages[1].tool_calls[0].id"),
    "bad legacy call": ([USER, {"role": "assistant", "function_call": "x"}], "messages[1].function_call"),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "param"), BAD.values(), ids=BAD.keys())
async def test_refused(gateway: Gateway, messages: Any, param: str) -> None:
    response = await gateway.client.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param
    assert gateway.engine.requests == []


async def test_results_are_put_in_the_order_of_their_calls(gateway: Gateway) -> None:
    calls = [{**CALL, "id": "a"}, {**CALL, "id": "b"}]
    results = [
        {"role": "tool", "tool_call_id": "b", "content": "SECOND"},
        {"role": "tool", "tool_call_id": "a", "content": "FIRST"},
    ]
    await gateway.chat(USER, {"role": "assistant", "tool_calls": calls}, *results, tools=[WEATHER])
    prompt = gateway.engine.requests[0].text or ""
    assert prompt.index("FIRST") < prompt.index("SECOND")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"audio": {}}, "audio"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"chat_template": "{{ x }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"x": {}}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "{"}}, "structured_outputs"),
        ({"functions": [{"name": "f"}], "tools": [WEATHER]}, "functions"),
        ({"reasoning_effort": "ultra"}, "reasoning_effort"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
async def test_refused_fields(gateway: Gateway, fields: Any, param: str) -> None:
    response = await gateway.chat(USER, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"frobnicate": 1, "__proto__": {"x": 1}},
        {"audio": None, "modalities": ["text"], "bad_words": [], "echo": False, "best_of": 1, "use_beam_search": False},
        {
            "prompt_cache_key": "k",
            "client_metadata": {"a": 1},
            "include": [],
            "reasoning": {},
            "text": {},
            "store": True,
        },
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"chat_template_kwargs": {"enable_thinking": True, "unknown": 1}},
        {"temperature": None, "max_tokens": None, "stop": None, "tools": None, "response_format": None, "stream": None},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
    ],
)
async def test_ignored_fields(gateway: Gateway, fields: Any) -> None:
    response = await gateway.chat(USER, **fields)
    assert response.status_code == 200, response.text
