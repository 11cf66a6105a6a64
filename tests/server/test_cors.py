"""Browser clients: what they may read of answers and of refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from engine.client import EngineUnavailable
from server.args import Secret
from tests.fakes import Reply

ORIGIN = "https://app.example"
KEY = "sk-user-0123456789"
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
SCRIPT: dict[str, Any] = {
    "full": Reply(error=EngineUnavailable("The queue is full.", retry_after=2.0)),
    "broken": Reply(error=RuntimeError("boom")),
    "": Reply("Hello!", chunk=2),
}


def asking(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **fields}


CASES: list[tuple[str, str, Any, int]] = [
    ("POST", CHAT, asking("hi"), 200),
    ("POST", CHAT, asking("hi", stream=True), 200),
    ("POST", CHAT, {"messages": []}, 400),
    ("POST", CHAT, asking("x" * 2000), 413),
    ("POST", CHAT, asking("hi", model="nope"), 404),
    ("POST", CHAT, asking("full"), 503),
    ("POST", CHAT, asking("full", stream=True), 503),
    ("POST", CHAT, asking("broken"), 500),
    ("POST", "/v1/messages", asking("hi"), 400),
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/models/nope", None, 404),
    ("GET", "/nowhere", None, 404),
    ("DELETE", "/v1/models", None, 405),
    ("GET", "/v1/responses/none", None, 404),
]


@pytest.mark.parametrize("allowed", [ORIGIN, "*"])
@pytest.mark.parametrize(("method", "path", "body", "status"), CASES)
async def test_a_browser_may_read_every_answer(
    make_gateway: Callable[..., Any], method: str, path: str, body: Any, status: int, allowed: str
) -> None:
    args = {"api_keys": (Secret(KEY),), "max_body_bytes": 1000, "allowed_origins": (allowed,)}
    async with make_gateway(SCRIPT, **args) as gateway:
        for key, expected in ((KEY, status), ("sk-wrong", 401)):
            headers = {"Origin": ORIGIN, "Authorization": f"Bearer {key}"}
            response = await gateway.client.request(method, path, json=body, headers=headers)
            assert response.status_code == expected
            assert response.headers["access-control-allow-origin"] == allowed
            assert "x-request-id" in response.headers["access-control-expose-headers"]
            assert len(response.headers.get_list("x-request-id")) == 1
            if expected >= 400:
                assert response.json()["error"]["message"]
                assert response.headers["content-type"] == "application/json"


async def test_a_refusal_says_the_same_to_others(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SCRIPT, allowed_origins=(ORIGIN,)) as gateway:
        for body in ({"messages": []}, asking("full"), asking("hi", model="nope")):
            here = await gateway.client.post(CHAT, json=body, headers={"Origin": ORIGIN})
            plain = await gateway.client.post(CHAT, json=body)
            assert (here.status_code, here.json()) == (plain.status_code, plain.json())
            assert here.headers.get("retry-after") == plain.headers.get("retry-after")
        foreign = await gateway.client.post(CHAT, json={"messages": []}, headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in foreign.headers


async def test_preflights(make_gateway: Callable[..., Any]) -> None:
    wanted = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, x-stainless-os",
    }
    async with make_gateway(api_keys=(Secret(KEY),), allowed_origins=(ORIGIN,)) as gateway:
        allowed = await gateway.client.options(CHAT, headers={"Origin": ORIGIN, **wanted})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == ORIGIN
        foreign = await gateway.client.options(CHAT, headers={"Origin": "https://evil.example", **wanted})
        assert foreign.status_code == 400
        assert foreign.json()["error"]["type"] == "invalid_request_error"
        assert "access-control-allow-origin" not in foreign.headers
