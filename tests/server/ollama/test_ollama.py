"""Ollama's API: the shapes its clients read, both modes saying the same, and nothing that would change an answer
passed over in silence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine.messages import FinishReason
from server.ollama.fields import IGNORED, REFUSED
from tests.fakes import Reply
from tests.server.conftest import Gateway

USER = {"role": "user", "content": "Weather?"}
WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments":\n{"city":\n"Par\\nis"}}\n</tool_call>'


async def _post(gateway: Gateway, path: str, **body: Any) -> Any:
    response = await gateway.client.post(path, content=orjson.dumps({"model": "test-model", **body}))
    assert response.status_code == 200, response.text
    return response


async def _lines(gateway: Gateway, path: str, **body: Any) -> list[dict[str, Any]]:
    """Every line of a stream: each is JSON, which is how clients read them."""
    response = await _post(gateway, path, **body)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [orjson.loads(line) for line in response.text[:-1].split("\n")]


def _joined(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """A message from its lines, as a client accumulates it."""
    found: dict[str, Any] = {"content": "", "thinking": "", "tool_calls": []}
    for line in lines:
        message = line.get("message", {"content": line.get("response"), "thinking": line.get("thinking", "")})
        found["content"] += message["content"]
        found["thinking"] += message.get("thinking", "")
        found["tool_calls"] += message.get("tool_calls", [])
    return found


def _without_id(calls: list[Any]) -> list[Any]:
    ids = [call["id"] for call in calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    return [call["function"] for call in calls]


@pytest.mark.parametrize("chunk", [0, 1, 7])
@pytest.mark.parametrize(
    ("text", "content", "thinking", "calls"),
    [
        ("Sunny.", "Sunny.", "", []),
        ("<think>\nhm\n</think>\n\nSunny.", "Sunny.", "hm", []),
        (CALL, "", "", [{"index": 0, "name": "get_weather", "arguments": {"city": "Par\nis"}}]),
        (
            "Let me see." + CALL + CALL,
            "Let me see.",
            "",
            [{"index": at, "name": "get_weather", "arguments": {"city": "Par\nis"}} for at in (0, 1)],
        ),
    ],
)
async def test_chat_in_both_modes(
    make_gateway: Callable[..., Any], text: str, content: str, thinking: str, calls: list[Any], chunk: int
) -> None:
    async with make_gateway(Reply(text, chunk=chunk)) as gateway:
        lines = await _lines(gateway, "/api/chat", messages=[USER], tools=[WEATHER])
        whole = (await _post(gateway, "/api/chat", messages=[USER], tools=[WEATHER], stream=False)).json()
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert all(line["model"] == "test-model" and line["created_at"] for line in lines)
    assert all(line["message"]["role"] == "assistant" for line in lines)
    joined = _joined(lines)
    assert (joined["content"].strip(), joined["thinking"].strip()) == (content, thinking)
    assert _without_id(joined["tool_calls"]) == calls
    assert whole["done"] is True
    assert whole["message"]["content"].strip() == content
    assert whole["message"].get("thinking", "").strip() == thinking
    assert _without_id(whole["message"].get("tool_calls", [])) == calls
    for last in (lines[-1], whole):
        assert last["done_reason"] == "stop"
        assert last["eval_count"] > 0
        assert min(last["total_duration"], last["eval_duration"], last["prompt_eval_duration"]) > 0


async def test_history_and_options_reach_the_engine(gateway: Gateway) -> None:
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    history = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": "sunny"},
    ]
    plain = [
        *history[:2],
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", **call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    options = {
        "temperature": 0.5,
        "top_k": 3.0,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "seed": 7,
        "num_predict": 50.0,
        "stop": ["", "zz"],
        "num_ctx": 4096,
        "mirostat": 0,
    }
    await _post(gateway, "/api/chat", messages=history, tools=[WEATHER], options=options, keep_alive="5m")
    await gateway.chat(*plain, tools=[WEATHER])
    ours, chat = gateway.engine.requests[-2:]
    assert ours.text == chat.text
    assert (ours.sampling.temperature, ours.sampling.top_k, ours.sampling.top_p) == (0.5, 3, 0.5)
    assert (ours.sampling.repetition_penalty, ours.sampling.seed) == (1.1, 7)
    assert (ours.sampling.max_tokens, ours.sampling.stop) == (50, ("zz",))
    unset = {"top_k": 0, "seed": -1, "num_predict": -1}
    await _post(gateway, "/api/chat", messages=[USER], options=unset)
    await gateway.chat(USER)
    ours, chat = gateway.engine.requests[-2:]
    assert ours.sampling == chat.sampling


@pytest.mark.parametrize("named", [{}, {"tool_name": None}, {"name": "get_weather"}])
async def test_results_without_a_name_answer_calls_in_order(gateway: Gateway, named: Any) -> None:
    """Home Assistant sends nothing but their content."""
    calls = [{"function": {"name": "get_weather", "arguments": {"city": city}}} for city in ("Paris", "Rome")]
    results = [{"role": "tool", "content": text, **named} for text in ("sunny", "rainy")]
    await _post(gateway, "/api/chat", messages=[USER, {"role": "assistant", "tool_calls": calls}, *results])
    ids = [{"id": f"c{place}", "type": "function", **call} for place, call in enumerate(calls)]
    plain = [
        {"role": "tool", "tool_call_id": f"c{at}", "content": result["content"]} for at, result in enumerate(results)
    ]
    await gateway.chat(USER, {"role": "assistant", "content": None, "tool_calls": ids}, *plain)
    ours, chat = gateway.engine.requests
    assert ours.text == chat.text


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_format_is_enforced(gateway: Gateway, path: str) -> None:
    prompt: dict[str, Any] = {"messages": [USER]} if path == "/api/chat" else {"prompt": "Weather?"}
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    for given, meant in (
        ("json", {"type": "json_object"}),
        (schema, {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}),
        ("", None),
    ):
        await _post(gateway, path, **prompt, format=given, stream=False)
        await gateway.chat(USER, response_format=meant)
        ours, chat = gateway.engine.requests[-2:]
        assert ours.grammar == chat.grammar
        assert ours.text == chat.text


@pytest.mark.parametrize(
    ("think", "words"), [(True, {"enable_thinking": True}), (False, {"enable_thinking": False}), (None, {})]
)
async def test_think_is_the_templates_switch(gateway: Gateway, think: Any, words: Any) -> None:
    await _post(gateway, "/api/chat", messages=[USER], think=think)
    await gateway.chat(USER, **words)
    ours, chat = gateway.engine.requests[-2:]
    assert ours.text == chat.text


async def test_generate(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("<think>\nhm\n</think>\n\nSunny.", chunk=3)) as gateway:
        lines = await _lines(gateway, "/api/generate", prompt="Weather?", system="Be brief.")
        joined = _joined(lines)
        assert (joined["content"].strip(), joined["thinking"].strip()) == ("Sunny.", "hm")
        assert lines[-1]["done_reason"] == "stop"
        assert lines[-1]["response"] == ""
        await gateway.chat({"role": "system", "content": "Be brief."}, USER)
        ours, chat = gateway.engine.requests
        assert ours.text == chat.text
        whole = (await _post(gateway, "/api/generate", prompt="Weather?", raw=True, stream=False)).json()
        assert whole["response"].startswith("<think>")  # nothing reads a raw completion
        assert gateway.engine.requests[-1].text == "Weather?"


async def test_the_end_by_length(gateway: Gateway) -> None:
    lines = await _lines(gateway, "/api/chat", messages=[USER], options={"num_predict": 2})
    assert (lines[-1]["done_reason"], _joined(lines)["content"]) == ("length", "He")


async def test_logprobs(gateway: Gateway) -> None:
    fields = {"messages": [USER], "logprobs": True, "top_logprobs": 2}
    lines = await _lines(gateway, "/api/chat", **fields)
    whole = (await _post(gateway, "/api/chat", **fields, stream=False)).json()
    streamed = [item for line in lines for item in line.get("logprobs", [])]
    assert "".join(item["token"] for item in streamed) == "Hello!"
    assert streamed == whole["logprobs"]
    assert len(streamed[0]["top_logprobs"]) == 2


@pytest.mark.parametrize("fields", [{"messages": []}, {}])
async def test_a_request_for_nothing_loads_the_model(gateway: Gateway, fields: Any) -> None:
    for path, more in (("/api/chat", fields), ("/api/generate", {}), ("/api/generate", {"prompt": ""})):
        answer = (await _post(gateway, path, **more)).json()
        assert (answer["done"], answer["done_reason"]) == (True, "load")
    assert not gateway.engine.requests


async def test_models(gateway: Gateway) -> None:
    client = gateway.client
    (model,) = (await client.get("/api/tags")).json()["models"]
    assert model["name"] == model["model"] == "test-model:latest"
    assert model["details"]["family"]
    assert {"completion", "tools", "thinking"} <= set(model["capabilities"])
    (running,) = (await client.get("/api/ps")).json()["models"]
    assert running["context_length"] == 8192
    assert (await client.get("/api/version")).json()["version"].count(".") == 2
    for key in ("model", "name"):
        shown = (await client.post("/api/show", json={key: model["name"]})).json()
        family = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{family}.context_length"] == 8192
        assert {"completion", "tools", "thinking"} <= set(shown["capabilities"])
        assert shown["model_info"]["general.basename"] == "test-model"  # what VS Code calls it
        assert ".Tools" in shown["template"]  # else LiteLLM writes tools into the prompt as text
        assert ".Suffix" not in shown["template"]
    # the name that was listed is known on every API
    for path, body in (
        ("/v1/chat/completions", {"messages": [USER]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [USER], "max_tokens": 5}),
        ("/v1/completions", {"prompt": "hi"}),
    ):
        assert (await client.post(path, json={"model": model["name"], **body})).status_code == 200


async def test_embeddings(gateway: Gateway) -> None:
    many = (await _post(gateway, "/api/embed", input=["a", "b"])).json()
    one = (await _post(gateway, "/api/embeddings", prompt="a")).json()
    openai = (await _post(gateway, "/v1/embeddings", input=["a", "b"])).json()
    assert many["embeddings"] == [item["embedding"] for item in openai["data"]]
    assert one["embedding"] == many["embeddings"][0]
    assert many["prompt_eval_count"] == openai["usage"]["prompt_tokens"]
    short = (await _post(gateway, "/api/embed", input="a", dimensions=2)).json()
    assert len(short["embeddings"][0]) == 2


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/chat", {"model": "nope", "messages": [USER]}, 404, "nope"),
        ("/api/chat", {"messages": [USER]}, 400, "model"),
        ("/api/chat", {"model": "test-model", "messages": "hi"}, 400, "messages"),
        ("/api/chat", {"model": "test-model", "messages": [{"role": "x", "content": ""}]}, 400, "messages[0].role"),
        ("/api/chat", {"model": "test-model", "messages": [{**USER, "images": ["aGk="]}]}, 400, "messages[0].images"),
        (
            "/api/chat",
            {"model": "test-model", "messages": [{"role": "user", "content": []}]},
            400,
            "messages[0].content",
        ),
        (
            "/api/chat",
            {"model": "test-model", "messages": [USER], "options": {"temperature": "x"}},
            400,
            "options.temperature",
        ),
        (
            "/api/chat",
            {"model": "test-model", "messages": [USER], "options": {"repeat_penalty": 0}},
            400,
            "options.repeat_penalty must be",
        ),
        (
            "/api/chat",
            {"model": "test-model", "messages": [USER], "options": {"num_predict": 1.5}},
            400,
            "options.num_predict",
        ),
        ("/api/chat", {"model": "test-model", "messages": [USER], "format": "yaml"}, 400, "format"),
        ("/api/chat", {"model": "test-model", "messages": [USER], "format": {"type": "banana"}}, 400, "format"),
        ("/api/chat", {"model": "test-model", "messages": [USER], "think": "ultra"}, 400, "think"),
        ("/api/chat", {"model": "test-model", "messages": [USER], "tools": [{}]}, 400, "tools[0]"),
        ("/api/chat", {"model": "test-model", "messages": [USER], "top_logprobs": 2}, 400, "logprobs"),
        ("/api/generate", {"model": "test-model", "prompt": "x", "suffix": "y"}, 400, "suffix"),
        ("/api/generate", {"model": "test-model", "prompt": 5}, 400, "prompt"),
        ("/api/embed", {"model": "test-model"}, 400, "input"),
        ("/api/embed", {"model": "test-model", "input": ""}, 400, "input"),
        ("/api/show", {}, 400, "model"),
        ("/api/show", {"model": "nope"}, 404, "nope"),
        ("/api/pull", {"model": "nope"}, 404, "Unknown request URL"),
        *(("/api/generate", {"model": "test-model", "prompt": "x", name: "y"}, 400, name) for name in REFUSED),
    ],
)
async def test_refusals_are_told_in_ollamas_words(
    gateway: Gateway, path: str, body: Any, status: int, said: str
) -> None:
    response = await gateway.client.post(path, json=body)
    assert response.status_code == status
    assert response.json().keys() == {"error"}
    assert said in response.json()["error"]
    assert not gateway.engine.requests


async def test_other_refusals_are_in_its_words_too(gateway: Gateway, make_gateway: Callable[..., Any]) -> None:
    client = gateway.client
    assert (await client.post("/api/chat", content=b"{")).json()["error"].startswith("The request body")
    assert isinstance((await client.get("/api/chat")).json()["error"], str)
    gateway.engine.state = "starting"
    response = await client.post("/api/chat", json={"model": "test-model", "messages": [USER]})
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert isinstance(response.json()["error"], str)


async def test_a_failure_in_a_stream_is_its_last_line(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello there.", chunk=4, fail_after=2)) as gateway:
        lines = await _lines(gateway, "/api/chat", messages=[USER])
        assert lines[0]["message"]["content"]
        assert lines[-1].keys() == {"error"}
    async with make_gateway(Reply("x", finish=FinishReason(type="error", message="no"))) as gateway:
        response = await gateway.client.post(
            "/api/chat", json={"model": "test-model", "messages": [USER], "stream": False}
        )
        assert response.status_code == 500
        assert response.json().keys() == {"error"}


async def test_silence_is_filled_with_lines(make_gateway: Callable[..., Any]) -> None:
    pace = {"stream_start_timeout": 0.02, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.03}
    async with make_gateway(Reply("bc", chunk=1, first_delay=0.4, delay=0.1), **pace) as gateway:
        lines = await _lines(gateway, "/api/chat", messages=[USER])
    assert _joined(lines)["content"] == "bc"
    assert sum(not line["message"]["content"] for line in lines) > 2, "no idle line came"


def test_no_field_is_ignored_and_refused() -> None:
    assert not IGNORED.keys() & REFUSED.keys()
