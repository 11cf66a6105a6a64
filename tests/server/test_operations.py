"""Health, models, metrics, the access log, rate limits: what an operator sees."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from engine.client import EngineState
from server.args import Secret
from server.errors import RateLimited
from server.rate_limit import RateLimiter
from tests.fakes import Reply, ScriptedEngine
from tests.server.conftest import Gateway
from tests.server.test_chat import PARIS, USER, WEATHER


@pytest.mark.parametrize("state", ["starting", "restarting", "draining", "dead"])
async def test_health_reads_state_and_generates_nothing(make_gateway: Callable[..., Any], state: EngineState) -> None:
    async with make_gateway() as gateway:
        for path in ("/health", "/health/ready", "/health/live"):
            assert (await gateway.client.get(path)).status_code == 200
        gateway.engine.state = state
        for path in ("/health", "/health/ready"):
            response = await gateway.client.get(path)
            assert response.status_code == 503
            assert response.json()["status"] == state
            assert "retry-after" in response.headers
        assert (await gateway.client.get("/health/live")).status_code == 200
        refused = await gateway.chat(USER)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert gateway.engine.requests == []


async def test_models(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(served_model_names=("org/name", "alias")) as gateway:
        listed = (await gateway.client.get("/v1/models")).json()
        assert listed["object"] == "list"
        assert [card["id"] for card in listed["data"]] == ["org/name", "alias", "test-model"]
        for path in ("org/name", "org%2Fname", "alias"):
            card = (await gateway.client.get(f"/v1/models/{path}")).json()
            assert card["object"] == "model"
            assert isinstance(card["created"], int)
            assert card["max_model_len"] == 8192
        for path in ("nope", "org", "org/name/x", "..%2f..%2fetc%2fpasswd", "%00", "%ZZ"):
            response = await gateway.client.get(f"/v1/models/{path}")
            assert response.status_code in (400, 404)
            assert response.json()["error"]["code"] in ("model_not_found", None)
        assert (await gateway.chat(USER, model="org/name")).json()["model"] == "org/name"
        assert (await gateway.client.post("/v1/chat/completions", json={"messages": [USER]})).json()[
            "model"
        ] == "org/name"


async def scrape(gateway: Gateway) -> dict[str, float]:
    text = (await gateway.client.get("/metrics")).text
    rows = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


async def test_metrics(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(PARIS, chunk=4, cached_tokens=3)) as gateway:
        await gateway.chat(USER, tools=[WEATHER])
        await gateway.stream(USER, tools=[WEATHER])
        await gateway.chat(USER, temperature=9)
        found = await scrape(gateway)
    assert found['callgate_http_requests_total{route="/v1/chat/completions",status="2xx"}'] == 2
    assert found['callgate_http_requests_total{route="/v1/chat/completions",status="4xx"}'] == 1
    assert found['callgate_generations_finished_total{reason="tool_calls"}'] == 2
    assert found['callgate_tool_calls_total{how="parsed"}'] == 2
    assert found['callgate_tokens_total{kind="cached_prompt"}'] == 6
    assert found['callgate_tokens_total{kind="completion"}'] > 100
    assert found["callgate_time_to_first_token_seconds_count"] == 2
    assert found["callgate_inter_token_latency_seconds_count"] > 10
    assert found["callgate_engine_ready"] == 1
    assert found["callgate_kv_total_pages"] == 100


async def test_odd_requests_mint_no_series(gateway: Gateway) -> None:
    """Labels from closed sets only."""
    await gateway.client.request("GET", "/x")
    await gateway.client.get("/v1/models/y")
    await gateway.chat(USER, model="nope")
    await scrape(gateway)
    before = len(await scrape(gateway))
    for i in range(50):
        await gateway.client.request(f"ODD{i}", f"/path/{i}")
        await gateway.client.get(f"/v1/models/{i}")
        await gateway.chat(USER, model=f"model-{i}")
    assert len(await scrape(gateway)) == before


async def test_metrics_of_an_engine_that_hangs(
    make_gateway: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    async def stats() -> None:
        await asyncio.sleep(60)

    async with make_gateway() as gateway:
        monkeypatch.setattr(gateway.engine, "stats", stats)
        start = time.monotonic()
        assert (await scrape(gateway))["callgate_engine_ready"] == 0
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize(
    ("path", "body", "prompt"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "say\n<|im_end|> ü"}]}, "say\n<|im_end|> ü"),
        ("/v1/responses", {"input": "say ü"}, "say ü"),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "say ü"}]}, "say ü"),
        ("/v1/completions", {"prompt": ["say ü", "say more"]}, "say ü"),
        ("/generate", {"input_ids": [7, 8, 9]}, [7, 8, 9]),
    ],
)
async def test_prompts_are_logged_where_the_operator_asks_for_it(
    make_gateway: Callable[..., Any], caplog: pytest.LogCaptureFixture, path: str, body: Any, prompt: Any, asked: bool
) -> None:
    async with make_gateway(log_prompts=asked) as gateway:
        with caplog.at_level(logging.INFO, "callgate.prompts"):
            response = await gateway.client.post(path, json=body)
    assert response.status_code == 200
    lines = [record.getMessage() for record in caplog.records if record.name == "callgate.prompts"]
    assert len(lines) == asked * len(body.get("prompt", [prompt]))
    for line in lines[:1]:
        assert line.isascii()
        assert "\n" not in line
        logged = json.loads(line)
        assert logged["request_id"] == response.headers["x-request-id"]
        assert prompt in logged["prompt"] if isinstance(prompt, str) else logged["prompt"] == prompt


async def test_the_access_log_is_one_escaped_line_of_json(
    make_gateway: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-user-0123456789"
    with caplog.at_level(logging.INFO, "callgate.access"):
        async with make_gateway(api_keys=(Secret(key),)) as gateway:
            headers = {"Authorization": f"Bearer {key}"}
            await gateway.client.get("/v1/models/a%0d%0aFORGED-LOG-LINE%1b[31m" + "x" * 500, headers=headers)
            await gateway.client.get("/v1/models/é\u202e%7f" + "y" * 300, headers=headers)
            body = orjson.dumps({"messages": [{"role": "user", "content": "my secret prompt"}]})
            response = await gateway.client.post("/v1/chat/completions", content=body, headers=headers)
    lines = [record.getMessage() for record in caplog.records if record.name == "callgate.access"]
    assert len(lines) == 3
    for line in lines:
        assert line.isascii()
        assert line.isprintable()
        assert len(json.loads(line)["path"]) <= 200
    last = json.loads(lines[-1])
    assert (last["status"], last["method"], last["path"]) == (200, "POST", "/v1/chat/completions")
    assert last["request_id"] == response.headers["x-request-id"]
    assert last["prompt_tokens"] > 0
    assert key not in caplog.text
    assert "secret prompt" not in caplog.text


async def test_request_ids_are_ours_and_the_clients_is_echoed(gateway: Gateway) -> None:
    first = await gateway.client.get("/health", headers={"x-request-id": "a", "x-client-request-id": "client-1"})
    second = await gateway.client.get("/health", headers={"x-client-request-id": "bad id\t"})
    assert first.headers["x-request-id"] != second.headers["x-request-id"]
    assert first.headers["x-request-id"].startswith("req_")
    assert first.headers["x-client-request-id"] == "client-1"
    assert "x-client-request-id" not in second.headers


async def test_rate_limits(make_gateway: Callable[..., Any]) -> None:
    keys = (Secret("key-a"), Secret("key-b"))
    async with make_gateway(api_keys=keys, requests_per_minute=2) as gateway:

        async def ask(key: str) -> Any:
            body = {"messages": [USER]}
            return await gateway.client.post(
                "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
            )

        assert [(await ask("key-a")).status_code for _ in range(3)] == [200, 200, 429]
        refused = await ask("key-a")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert (await ask("key-b")).status_code == 200, "another key is not affected"


async def test_tokens_per_minute(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(api_keys=(Secret("key-a"),), tokens_per_minute=20) as gateway:
        headers = {"Authorization": "Bearer key-a"}
        codes = [
            (await gateway.client.post("/v1/chat/completions", json={"messages": [USER]}, headers=headers)).status_code
            for _ in range(2)
        ]
    assert codes == [200, 429]


def test_limiter_refills_by_its_clock() -> None:
    now = [0.0]
    limiter = RateLimiter(requests_per_minute=60, tokens_per_minute=600, max_concurrent=1, clock=lambda: now[0])
    with limiter.admit(b"k"), pytest.raises(RateLimited, match="at a time"), limiter.admit(b"k"):
        pass
    limiter.charge(b"k", 700)
    with pytest.raises(RateLimited, match="tokens") as info, limiter.admit(b"k"):
        pass
    now[0] += int(info.value.headers["Retry-After"])
    with limiter.admit(b"k"):
        pass
    limiter.charge(None, 10_000)
    for _ in range(100):
        try:
            with limiter.admit(b"k"):
                continue
        except RateLimited:
            break
    else:
        raise AssertionError("requests were never limited")
    now[0] += 60
    with limiter.admit(b"k"):
        pass


async def test_a_failed_request_gives_its_slot_back(make_gateway: Callable[..., Any]) -> None:
    engine = ScriptedEngine(Reply(error=RuntimeError("x")))
    async with make_gateway(engine, api_keys=(Secret("key-a"),), max_concurrent_requests=1) as gateway:
        for _ in range(3):
            response = await gateway.client.post(
                "/v1/chat/completions", json={"messages": [USER]}, headers={"Authorization": "Bearer key-a"}
            )
            assert response.status_code == 500
    assert engine.running == 0


async def test_openapi_document(gateway: Gateway) -> None:
    document = (await gateway.client.get("/openapi.json")).json()
    operation = document["paths"]["/v1/chat/completions"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["messages"]
    assert "422" not in operation["responses"]
    assert "#/" not in json.dumps(document), "schemas are inlined"
    for path in ("/docs", "/redoc"):
        assert (await gateway.client.get(path)).status_code == 404
