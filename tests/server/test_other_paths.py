"""Azure's paths and key, as its SDK and clients for its deployments send them, and the paths of LM Studio and llama.cpp."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from server.args import Secret
from server.other_paths import plain_path
from tests.server.conftest import Gateway

KEY, OTHER = "sk-azure-0123456789", "sk-other-0123456789"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
CHAT = "/openai/deployments/test-model/chat/completions"


@pytest.mark.parametrize(
    ("path", "plain", "deployment"),
    [
        (CHAT, "/v1/chat/completions", "test-model"),
        ("/openai/deployments/org/name/chat/completions", "/v1/chat/completions", "org/name"),
        ("/openai/deployments/m/completions", "/v1/completions", "m"),
        ("/openai/deployments/m/embeddings", "/v1/embeddings", "m"),
        ("/openai/v1/chat/completions", "/v1/chat/completions", ""),
        ("/openai/v1/responses/resp_1/input_items", "/v1/responses/resp_1/input_items", ""),
        ("/openai/responses", "/v1/responses", ""),
        ("/openai/models/org/name", "/v1/models/org/name", ""),
        ("/api/v0/chat/completions", "/v1/chat/completions", ""),
        ("/api/v0/completions", "/v1/completions", ""),
        ("/api/v0/embeddings", "/v1/embeddings", ""),
        ("/chat/completions", "/v1/chat/completions", ""),
        ("/models", "/v1/models", ""),
    ],
)
def test_paths(path: str, plain: str, deployment: str) -> None:
    assert plain_path(path) == (plain, deployment)


@pytest.mark.parametrize(
    "path",
    [
        "/openai", "/openai/deployments/", "/openai/deployments//chat/completions",
        "/openai/deployments/m", "/openai/deployments/m/images/generations", "/v1/openai/responses", "/OpenAI/v1/models",
        "/xopenai/v1/models", "/health", "/flush_cache",
        "/api/v0/models", "/api/v0", "/api/v0/responses", "/api/v01/completions", "/api/chat",
        "/completions", "/embeddings", "/models/", "/chat/completions/", "/x/chat/completions",
    ],
)  # fmt: skip
def test_other_paths_stay_as_they_are(path: str) -> None:
    assert plain_path(path) == (path, "")


def azure(gateway: Gateway, **more: Any) -> openai.AsyncAzureOpenAI:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway.app, client=("127.0.0.1", 1)))
    given = {
        "azure_endpoint": "http://localhost",
        "api_version": "2025-04-01-preview",
        "api_key": KEY,
        "max_retries": 0,
    }
    return openai.AsyncAzureOpenAI(http_client=http, **given | more)


async def test_azures_sdk(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("Hello!", api_keys=(Secret(KEY), Secret(OTHER))) as gateway, azure(gateway) as client:
        answer = await client.chat.completions.create(model="test-model", messages=MESSAGES)
        assert answer.choices[0].message.content == "Hello!"
        stream = await client.chat.completions.create(model="test-model", messages=MESSAGES, stream=True)
        text = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(text) == "Hello!"
        assert (await client.completions.create(model="test-model", prompt="hi")).choices[0].text == "Hello!"
        assert (await client.embeddings.create(model="test-model", input="hi")).data[0].embedding
        response = await client.responses.create(model="test-model", input="hi")
        assert response.output_text == "Hello!"
        assert (await client.responses.retrieve(response.id)).id == response.id
        assert [model.id async for model in await client.models.list()] == ["test-model"]
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


async def test_the_deployment_of_the_url_is_the_model(make_gateway: Callable[..., Any]) -> None:
    names = ("test-model", "org/name")
    async with make_gateway("Hello!", served_model_names=names) as gateway:
        async with azure(gateway, azure_deployment="org/name") as client:
            answer = await client.chat.completions.create(model="gpt-whatever", messages=MESSAGES)
            assert answer.model == "org/name"
        async with azure(gateway, azure_deployment="gone") as client:
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="test-model", messages=MESSAGES)


@pytest.mark.parametrize("path", [CHAT, "/openai/v1/chat/completions", "/openai/models", "/openai/v1/responses/x"])
async def test_keys_are_asked_for(make_gateway: Callable[..., Any], path: str) -> None:
    async with make_gateway("Hello!", api_keys=(Secret(KEY), Secret(OTHER))) as gateway:
        method = "POST" if path.endswith("completions") else "GET"
        for headers in (
            {},
            {"api-key": "wrong"},
            {"api-key": KEY, "authorization": f"Bearer {OTHER}"},
            {"api-key": ""},
        ):
            answer = await gateway.client.request(method, path, headers=headers, json={"messages": MESSAGES})
            assert answer.status_code == 401, headers
        for headers in ({"api-key": KEY}, {"authorization": f"Bearer {KEY}"}, {"api-key": KEY, "x-api-key": KEY}):
            answer = await gateway.client.request(method, path, headers=headers, json={"messages": MESSAGES})
            assert answer.status_code == (404 if path.endswith("x") else 200), headers


async def test_no_open_or_admin_route_is_reached_by_azures_paths(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("Hello!", api_keys=(Secret(KEY),)) as gateway:
        for path in ("/openai/health", "/openai/flush_cache", "/openai/deployments/health", "/openai//health"):
            assert (await gateway.client.get(path)).status_code == 401
            assert (await gateway.client.get(path, headers={"api-key": KEY})).status_code == 404


async def test_the_access_log_says_what_was_asked_for(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="callgate.access"):
        await gateway.client.post(CHAT, params={"api-version": "2024-10-21"}, json={"messages": MESSAGES})
    assert f'"path": "{CHAT}"' in caplog.text
    text = (await gateway.client.get("/metrics")).text
    assert 'route="/v1/chat/completions"' in text


async def test_lm_studios_clients(gateway: Gateway) -> None:
    """What Zed reads of its list, and its chat."""
    (model,) = (await gateway.client.get("/api/v0/models")).json()["data"]
    assert (model["id"], model["object"], model["type"], model["state"]) == ("test-model", "model", "llm", "loaded")
    assert model["compatibility_type"] in ("gguf", "mlx")
    assert model["max_context_length"] == model["loaded_context_length"] == 8192
    assert "tool_use" in model["capabilities"]
    assert (await gateway.client.get("/api/v0/models/test-model")).json() == model
    unknown = await gateway.client.get("/api/v0/models/nope")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    answer = await gateway.client.post("/api/v0/chat/completions", json={"model": "test-model", "messages": MESSAGES})
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"


async def test_llama_cpps_clients(gateway: Gateway) -> None:
    """Continue's provider of that name asks without /v1."""
    answer = await gateway.client.post("/chat/completions", json={"model": "test-model", "messages": MESSAGES})
    assert answer.json()["choices"][0]["message"]["content"] == "Hello!"
    assert (await gateway.client.get("/models")).json() == (await gateway.client.get("/v1/models")).json()
