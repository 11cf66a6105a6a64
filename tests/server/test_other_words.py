"""Values and fields as clients of other servers write them, on the endpoints that those clients ask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import Reply
from tests.server.conftest import Gateway

USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER]}
WHOLE: list[tuple[str, dict[str, Any], str, str]] = [
    *(("/v1/chat/completions", CHAT, name, name) for name in ("max_tokens", "top_k", "seed", "n", "min_tokens")),
    ("/v1/chat/completions", CHAT, "max_completion_tokens", "max_tokens"),
    *(("/v1/completions", {"prompt": "hi"}, name, name) for name in ("max_tokens", "seed", "n")),
    ("/v1/responses", {"input": "hi"}, "max_output_tokens", "max_tokens"),
    ("/v1/messages", CHAT, "max_tokens", "max_tokens"),
    ("/completion", {"prompt": "hi"}, "n_predict", "max_tokens"),
]


@pytest.mark.parametrize(("path", "body", "field", "means"), WHOLE)
async def test_a_whole_number_with_a_decimal_point(
    gateway: Gateway, path: str, body: dict[str, Any], field: str, means: str
) -> None:
    """Gson and Lua write 3.0, which is an integer to JSON Schema."""
    response = await gateway.client.post(path, json={**body, field: 3.0})
    assert response.status_code == 200, response.text
    value = getattr(gateway.engine.requests[-1].sampling, means)
    assert (value, type(value)) == (3, int)
    for broken in (1.5, 1e16, 1e300, True, "3"):
        error = (await gateway.client.post(path, json={**body, field: broken})).json()["error"]
        assert error["param"] == field, broken


async def test_whole_numbers_of_native_requests_and_options(gateway: Gateway) -> None:
    for path, body in (
        ("/generate", {"text": "hi", "sampling_params": {"max_new_tokens": 3.0}}),
        ("/api/chat", {"model": "test-model", "messages": [USER], "options": {"num_predict": 3.0, "top_k": -1.0}}),
    ):
        assert (await gateway.client.post(path, json=body)).status_code == 200
        sampling = gateway.engine.requests[-1].sampling
        assert (sampling.max_tokens, type(sampling.max_tokens)) == (3, int)


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hi"})])
async def test_repeat_penalty(gateway: Gateway, path: str, body: dict[str, Any]) -> None:
    """LM Studio documents it, llama.cpp reads it; vLLM's name goes first."""
    for fields, meant in (
        ({"repeat_penalty": 1.2}, 1.2),
        ({"repeat_penalty": 1}, 1.0),
        ({"repeat_penalty": None}, 1.0),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.3}, 1.3),
    ):
        assert (await gateway.client.post(path, json={**body, **fields})).status_code == 200
        assert gateway.engine.requests[-1].sampling.repetition_penalty == meant
    for name in ("repeat_penalty", "repetition_penalty"):
        for broken in (0, 11, "1.1"):
            error = (await gateway.client.post(path, json={**body, name: broken})).json()["error"]
            assert error["param"] == name
            assert name in error["message"]


@pytest.mark.parametrize(
    ("form", "fields"),
    [
        *((form, {"reasoning_content"}) for form in (None, "auto", "deepseek", "deepseek-legacy")),
        *((form, set()) for form in ("none", "raw", "hidden")),
        ("parsed", {"reasoning_content", "reasoning"}),
    ],
)
async def test_reasoning_format(make_gateway: Callable[..., Any], form: str | None, fields: set[str]) -> None:
    """llama.cpp's words and Groq's."""
    async with make_gateway(Reply("<think>\nHm.\n</think>\n\nSunny.", chunk=1)) as gateway:
        message = (await gateway.chat(reasoning_format=form)).json()["choices"][0]["message"]
        events = await gateway.stream(reasoning_format=form)
        asked = (await gateway.chat(reasoning_format=form, separate_reasoning=True)).json()["choices"][0]["message"]
    content = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1] if event["choices"])
    for text in (message["content"], content):
        assert ("<think>" in text) == (form in ("none", "raw"))
        assert text.endswith("Sunny.")
    assert {name for name in ("reasoning_content", "reasoning") if message.get(name)} == fields
    assert asked["content"] == "Sunny."


async def test_reasoning_formats_that_there_are_not(gateway: Gateway) -> None:
    error = (await gateway.chat(reasoning_format="xml")).json()["error"]
    assert error["param"] == "reasoning_format"


@pytest.mark.parametrize("value", [None, -1])
@pytest.mark.parametrize(
    "path", ["/chat/completions", "/api/v0/chat/completions", "/api/v0/completions", "/completion"]
)
async def test_minus_one_is_no_limit_where_it_is_said_to_be(gateway: Gateway, path: str, value: int | None) -> None:
    """On llama.cpp's and LM Studio's own paths."""
    field = "n_predict" if path == "/completion" else "max_tokens"
    response = await gateway.client.post(path, json={**CHAT, "prompt": "hi", field: value})
    assert response.status_code == 200, response.text
    limits = (16,) if value is None and path == "/api/v0/completions" else (None, 8192)
    assert gateway.engine.requests[-1].sampling.max_tokens in limits
    error = (await gateway.client.post(path, json={**CHAT, "prompt": "hi", "seed": "x"})).json()["error"]
    assert error["param"] == "seed"


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/chat/completions", "max_completion_tokens"),
        ("/openai/v1/chat/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
    ],
)
async def test_minus_one_is_refused_where_it_means_nothing(gateway: Gateway, path: str, field: str) -> None:
    for value in (-1, -2, 0):
        error = (await gateway.client.post(path, json={**CHAT, field: value} | _input(path))).json()["error"]
        assert error["param"] == field
        assert "absent" in error["message"]


def _input(path: str) -> dict[str, Any]:
    return {"input": "hi", "messages": None} if path.endswith("responses") else {}
