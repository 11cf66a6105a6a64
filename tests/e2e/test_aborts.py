"""Requests that are aborted by their id and requests whose clients lose patience, of every kind side by side: nothing
is left of any, and what an aborted one has got is whole. CALLGATE_TEST_SCALE=5 makes 500 of each."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.engines import scaled, until
from tests.e2e.test_serve import Server

pytestmark = pytest.mark.e2e

SCHEMA = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "minItems": 200}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {**SCHEMA, "required": ["a"]}}}
LONG = 400
GOLDEN = {"text": "The golden probe.", "sampling_params": {"max_new_tokens": 32, "temperature": 0}}
ASIDE = 24
"""So many at a time, most of which wait: the batch has 8 rows."""


def native(rng: random.Random, **more: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"max_new_tokens": LONG, "ignore_eos": True, "n": rng.choice([1, 1, 3])}
    if rng.random() < 0.3:
        params["json_schema"] = json.dumps({**SCHEMA, "required": ["a"]})
    prompt = "client " * rng.randint(1, 300)
    return {"text": prompt, "sampling_params": params, "return_logprob": True, "top_logprobs_num": 2, **more}


def chat(rng: random.Random, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "client " * rng.randint(1, 300)}], "n": 2}
    if rng.random() < 0.6:
        body |= {"tools": [TOOL], "tool_choice": rng.choice(["auto", "required"])}
    return {**body, "max_tokens": LONG, "logprobs": True, "top_logprobs": 2, "return_token_ids": True, **more}


def events(lines: list[str]) -> list[Any]:
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(item) for item in data if item != "[DONE]"]


def check_native(bodies: list[dict[str, Any]]) -> None:
    """Text, ids and logprobs of one moment belong together."""
    for body in bodies:
        meta, ids = body["meta_info"], body["output_ids"]
        assert len(ids) == meta["completion_tokens"] == len(meta["output_token_logprobs"])
        assert [item[1] for item in meta["output_token_logprobs"]] == ids
        assert len(meta["output_top_logprobs"]) == len(ids)


def check_chat(found: list[Any]) -> None:
    for chunk in found:
        for choice in chunk.get("choices", ()):
            entries = (choice.get("logprobs") or {}).get("content") or []
            assert len(entries) == len(choice.get("token_ids") or ()), chunk


class Clients:
    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self.tally: Counter[str] = Counter()

    async def abort(self, rid: str) -> bool:
        """Whether it ran."""
        ended = (await self._client.post("/abort_request", json={"rid": rid})).json()["aborted"]
        assert ended in (0, 1)
        return bool(ended)

    async def aborted_native(self, number: int, rng: random.Random) -> None:
        stream, rid = rng.random() < 0.5, f"r{number}"
        body = native(rng, rid=rid, stream=stream)
        ask = self._lines if stream else self._whole
        task = asyncio.create_task(ask("/generate", body))
        await asyncio.sleep(rng.random() * 0.6)
        for _ in range(600):
            if task.done() or await self.abort(rid):
                break
            await asyncio.sleep(0.1)  # it has not come yet, or has just ended
        bodies = await task
        check_native(bodies)
        ends = {end["type"] for body in bodies if (end := body["meta_info"]["finish_reason"])}
        assert ends
        assert ends <= {"abort", "length", "stop"}
        self.tally["aborted"] += "abort" in ends

    async def aborted_chat(self, number: int, rng: random.Random) -> None:
        """By the id that its first chunk says."""
        found: list[Any] = []
        wanted = rng.choice([1, 1, 5, 30])
        async with self._client.stream("POST", "/v1/chat/completions", json=chat(rng, stream=True)) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                found += events([line])
                if len(found) == wanted and "error" not in found[-1]:
                    await self.abort(found[0]["id"])
        check_chat(found)
        codes = [item["error"]["code"] for item in found if "error" in item]
        self.tally["aborted"] += codes == ["request_aborted"]
        assert codes == ["request_aborted"] or self._ended(found), found[-2:]

    @staticmethod
    def _ended(found: list[Any]) -> bool:
        ends = [choice["finish_reason"] for chunk in found for choice in chunk.get("choices", ())]
        return sum(end is not None for end in ends) == 2

    async def impatient(self, number: int, rng: random.Random) -> None:
        """A client whose own timeout ends the wait: before, between and after its first chunks."""
        path, make = rng.choice([("/generate", native), ("/v1/chat/completions", chat)])
        body = make(rng, stream=rng.random() < 0.5)
        try:
            async with asyncio.timeout(rng.random() * 0.6):
                await (self._lines if body["stream"] else self._whole)(path, body)
        except TimeoutError:
            self.tally["left"] += 1

    async def _whole(self, path: str, body: dict[str, Any]) -> list[Any]:
        answer = (await self._client.post(path, json=body)).json()
        return answer if isinstance(answer, list) else [answer]

    async def _lines(self, path: str, body: dict[str, Any]) -> list[Any]:
        async with self._client.stream("POST", path, json=body) as response:
            return events([line async for line in response.aiter_lines()])


def connections(client: httpx.AsyncClient) -> int:
    return len(client._transport._pool.connections)  # type: ignore[attr-defined]


async def until_idle(client: httpx.AsyncClient) -> dict[str, Any]:
    for _ in range(600):
        (state,) = (await client.get("/server_info")).json()["internal_states"]
        held = state["total_pages"] - state["free_pages"] - state["cached_pages"]
        if state["running"] == state["waiting"] == held == 0:
            return dict(state)
        await asyncio.sleep(0.05)
    raise AssertionError(state)


@pytest.fixture
async def client(run_dir: Path, tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, psutil.Process]]:
    arguments = ["--run-dir", str(run_dir), "--max-running-requests", "8", "--hash-lm-delay", "0.02"]
    server = Server([*arguments, "--max-queue-time", "600"], tmp_path / "server.log")
    try:
        url = server.wait_ready()
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=64)) as client:
            yield client, psutil.Process(server.process.pid)
        server.process.terminate()
        assert server.process.wait(60) == 0
        assert "Traceback" not in server.output
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.timeout(900)
async def test_aborts_and_timeouts_of_every_kind(client: tuple[httpx.AsyncClient, psutil.Process]) -> None:
    http, process = client
    clients, count = Clients(http), scaled(100)
    kinds: list[Callable[[int, random.Random], Any]] = [clients.aborted_native, clients.aborted_chat]
    golden = (await http.post("/generate", json=GOLDEN)).json()["output_ids"]
    constrained = {"max_new_tokens": 1, "json_schema": json.dumps(SCHEMA)}
    await http.post("/generate", json={"text": "The check worker is started.", "sampling_params": constrained})
    await until_idle(http)
    before = process.num_fds() - connections(http), {child.pid for child in process.children()}
    slots = asyncio.Semaphore(ASIDE)

    async def one(number: int) -> None:
        rng = random.Random(number)
        async with slots:
            await (kinds[number // 2 % 2] if number % 2 else clients.impatient)(number, rng)

    async with asyncio.TaskGroup() as group:
        for number in range(2 * count):
            group.create_task(one(number))
    state = await until_idle(http)
    assert state["leaked_pages"] == 0
    assert (await http.post("/generate", json=GOLDEN)).json()["output_ids"] == golden
    assert {child.pid for child in process.children()} == before[1]
    await until(lambda: process.num_fds() <= before[0] + connections(http), 60)
    print(f"{2 * count} requests: {dict(clients.tally)}")
    assert clients.tally["aborted"] >= count // 2
    assert clients.tally["left"] >= count // 2
