"""The wall clock jumps by an hour and by days, both ways: nothing expires early or late."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.launch import launch
from engine.messages import GenerateReqInput
from engine.sampling_params import SamplingParams
from server.args import Secret
from tests.fakes import Reply, ScriptedEngine
from tests.live import eventually

JUMPS = [-48 * 3600.0, -3600.0, 3600.0, 48 * 3600.0]
real_time = time.time


@pytest.fixture(params=JUMPS)
def jump(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Moves this process's wall clock, once called."""
    return lambda: monkeypatch.setattr(time, "time", lambda: real_time() + request.param)


async def test_streams_go_on(make_gateway: Callable[..., Any], jump: Callable[[], None]) -> None:
    engine = ScriptedEngine(Reply("Hello world" * 4, chunk=1, delay=0.02))
    async with make_gateway(engine) as gateway:
        streams = [asyncio.create_task(gateway.chat(stream=True)) for _ in range(8)]
        await eventually(lambda: engine.running == 8)
        jump()
        for response in await asyncio.gather(*streams):
            assert response.status_code == 200
            assert response.text.endswith("data: [DONE]\n\n")
            assert ": keep-alive" not in response.text
    assert engine.running == 0


async def test_rate_limits_neither_open_nor_close(make_gateway: Callable[..., Any], jump: Callable[[], None]) -> None:
    key = "sk-user-0123456789"
    headers = {"Authorization": f"Bearer {key}"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    async with make_gateway(api_keys=(Secret(key),), requests_per_minute=2) as gateway:
        statuses = []
        for number in range(4):
            if number == 1:
                jump()
            response = await gateway.client.post("/v1/chat/completions", json=body, headers=headers)
            statuses.append(response.status_code)
        assert statuses == [200, 200, 429, 429]
        assert 1 <= int(response.headers["retry-after"]) <= 60


async def test_stored_responses_stay(make_gateway: Callable[..., Any], jump: Callable[[], None]) -> None:
    async with make_gateway() as gateway:
        stored = (await gateway.client.post("/v1/responses", json={"input": "hi"})).json()
        jump()
        again = await gateway.client.get(f"/v1/responses/{stored['id']}")
        assert again.status_code == 200
        assert again.json()["created_at"] == stored["created_at"]
        more = {"input": "and?", "previous_response_id": stored["id"]}
        assert (await gateway.client.post("/v1/responses", json=more)).status_code == 200


@pytest.mark.e2e
async def test_the_engine_is_not_taken_for_stopped(jump: Callable[[], None]) -> None:
    config = EngineConfig(model="hash-lm", hash_lm_delay=0.01)
    async with launch(config) as engine:
        manager = engine.manager
        request = GenerateReqInput(text="hi", sampling=SamplingParams(max_tokens=100))
        stream = engine.generate(request)
        first = await anext(stream)
        jump()
        outputs = [first, *[output async for output in stream]]
        await asyncio.sleep(1.2)  # two beats
        assert engine.state == "ready"
        assert engine.manager is manager
        end = outputs[-1].finish_reason
        assert end is not None
        assert end.type == "length"
