"""Responses in the background: answered at once, read, followed, cancelled and continued by their id."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from engine.client import EngineError
from server import limits
from server.args import Secret
from tests.fakes import Reply
from tests.live import eventually
from tests.server.conftest import Gateway, events
from tests.server.openai.response_checks import check_response

SLOW = Reply("One two three four five six.", chunk=4, delay=0.02)
HANGING = Reply("One two three.", chunk=4, hang_after=2)
KEY, OTHER = "sk-background-0123456789", "sk-other-0123456789"


async def ask(gateway: Gateway, method: str = "POST", path: str = "", **fields: Any) -> httpx.Response:
    body = {"input": "hi", **fields} if method == "POST" and not path else None
    return await gateway.client.request(method, f"/v1/responses{path}", json=body)


async def begun(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    response = await ask(gateway, background=True, **fields)
    assert response.status_code == 200, response.text
    body = response.json()
    assert (body["status"], body["background"], body["output"]) == ("queued", True, [])
    return dict(body)


async def ended(gateway: Gateway, response_id: str) -> dict[str, Any]:
    """The response when nothing will change any more."""
    statuses = []
    for _ in range(500):
        body = (await ask(gateway, "GET", f"/{response_id}")).json()
        statuses.append(body["status"])
        if body["status"] not in ("queued", "in_progress"):
            assert statuses == sorted(statuses, key=["queued", "in_progress", body["status"]].index)
            return dict(body)
        await asyncio.sleep(0.01)
    raise AssertionError(statuses)


async def test_it_is_what_it_would_have_been(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        plain = (await ask(gateway, metadata={"a": "b"})).json()
        first = await begun(gateway, metadata={"a": "b"})
        body = await ended(gateway, first["id"])
        assert gateway.engine.running == 0
    check_response(body)
    assert body["background"] is True
    times = {name: body[name] for name in ("id", "created_at", "completed_at", "background")}
    output = [{**item, "id": body["output"][0]["id"]} for item in plain["output"]]
    assert {**plain, **times, "output": output} == body
    assert first["id"] == body["id"]


async def test_its_events_can_be_followed_from_any_on(make_gateway: Callable[..., Any]) -> None:
    """While they come and afterwards, by one that asked for the stream and by others."""
    async with make_gateway(SLOW) as gateway:
        asking = asyncio.create_task(ask(gateway, background=True, stream=True))
        await eventually(lambda: gateway.engine.running == 1)
        (response_id,) = [key[1] for key in _jobs(gateway)]
        during = [asyncio.create_task(ask(gateway, "GET", f"/{response_id}?stream=true")) for _ in range(2)]
        whole = events((await asking).text)
        assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
        assert whole[0]["response"]["id"] == response_id
        assert whole[-1]["type"] == "response.completed"
        for task in during:
            assert events((await task).text) == whole
        for after in (0, 3, len(whole) - 2, len(whole) - 1, len(whole) + 5):
            path = f"/{response_id}?stream=true&starting_after={after}"
            assert events((await ask(gateway, "GET", path)).text) == whole[after + 1 :]
        for wrong in ("-1", "x", "1e3", "\u0663"):
            answer = await ask(gateway, "GET", f"/{response_id}?stream=true&starting_after={wrong}")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


def _jobs(gateway: Gateway) -> list[tuple[str, str]]:
    """What runs: its ids are known to /abort_request, too."""
    return [key for key in gateway.app.state.services.running._found if key[1].startswith("resp_")]


async def test_a_reader_that_leaves_ends_nothing(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        asking = asyncio.create_task(ask(gateway, background=True, stream=True))
        await eventually(lambda: gateway.engine.running == 1)
        (key,) = _jobs(gateway)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert (await ended(gateway, key[1]))["status"] == "completed"


async def test_only_streams_can_be_followed(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        for response_id in ((await begun(gateway))["id"], (await ask(gateway)).json()["id"]):
            answer = await ask(gateway, "GET", f"/{response_id}?stream=true")
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")
            await ended(gateway, response_id)
            assert (await ask(gateway, "GET", f"/{response_id}?stream=true")).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelling(make_gateway: Callable[..., Any], stream: bool) -> None:
    async with make_gateway(HANGING) as gateway:
        asking = asyncio.create_task(ask(gateway, background=True, stream=stream))
        await eventually(lambda: gateway.engine.running == 1)
        (key,) = _jobs(gateway)
        for _ in range(2):
            cancelled = (await ask(gateway, "POST", f"/{key[1]}/cancel")).json()
            assert (cancelled["id"], cancelled["status"]) == (key[1], "cancelled")
        assert (gateway.engine.running, gateway.engine.aborted) == (0, 1)
        await asking
        assert (await ended(gateway, key[1]))["status"] == "cancelled"


async def test_what_is_done_or_was_not_in_the_background_is_not_cancelled(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway("Hello!") as gateway:
        response_id = (await begun(gateway))["id"]
        body = await ended(gateway, response_id)
        assert (await ask(gateway, "POST", f"/{response_id}/cancel")).json() == body
        plain = (await ask(gateway)).json()["id"]
        assert (await ask(gateway, "POST", f"/{plain}/cancel")).status_code == 400


async def test_deleting_ends_it(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(HANGING) as gateway:
        response_id = (await begun(gateway))["id"]
        await eventually(lambda: gateway.engine.running == 1)
        assert (await ask(gateway, "DELETE", f"/{response_id}")).json()["deleted"] is True
        assert gateway.engine.running == 0
        assert (await ask(gateway, "GET", f"/{response_id}")).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_failures_are_read_like_answers(make_gateway: Callable[..., Any], stream: bool) -> None:
    failures = (
        (Reply("One two three.", chunk=4, fail_after=2), "server_error"),
        (Reply(error=EngineError("It does not fit.", status=400, code="context_length_exceeded")), "server_error"),
        (Reply(error=RuntimeError("a secret")), "server_error"),
    )
    for reply, code in failures:
        async with make_gateway(reply) as gateway:
            asking = asyncio.create_task(ask(gateway, background=True, stream=stream))
            first = await asking
            response_id = events(first.text)[0]["response"]["id"] if stream else first.json()["id"]
            body = await ended(gateway, response_id)
            assert (body["status"], body["error"]["code"]) == ("failed", code)
            assert "secret" not in str(body)
            if stream:
                assert [event["type"] for event in events(first.text)][-2:] == ["response.failed", "error"]
                again = await ask(gateway, "GET", f"/{response_id}?stream=true&starting_after=0")
                assert events(again.text) == events(first.text)[1:]


async def test_it_is_continued_when_it_is_there(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway({"<|im_start|>user\nhi": Reply("Hello!", first_delay=0.1)}) as gateway:
        response_id = (await begun(gateway))["id"]
        early = await ask(gateway, input="and now?", previous_response_id=response_id)
        assert (early.status_code, early.json()["error"]["param"]) == (400, "previous_response_id")
        await ended(gateway, response_id)
        assert (await ask(gateway, input="and now?", previous_response_id=response_id)).status_code == 200
        assert "Hello!" in gateway.engine.requests[-1].text


async def test_refusals_come_at_once(gateway: Gateway) -> None:
    for fields, param in (
        ({"store": False}, "background"),
        ({"temperature": 9}, "temperature"),
        ({"input": []}, "input"),
    ):
        answer = await ask(gateway, background=True, **fields)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert not gateway.engine.requests


async def test_another_keys_response_is_unknown(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(HANGING, api_keys=(Secret(KEY), Secret(OTHER))) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        response_id = (await begun(gateway))["id"]
        gateway.client.headers["authorization"] = f"Bearer {OTHER}"
        for method, tail in (("GET", ""), ("GET", "?stream=true"), ("POST", "/cancel"), ("DELETE", "")):
            assert (await ask(gateway, method, f"/{response_id}{tail}")).status_code == 404
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        assert (await ask(gateway, "GET", f"/{response_id}")).json()["status"] in ("queued", "in_progress")
        await ask(gateway, "DELETE", f"/{response_id}")


async def test_it_counts_against_the_limits_of_its_key(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(HANGING, api_keys=(Secret(KEY),), max_concurrent_requests=1) as gateway:
        gateway.client.headers["authorization"] = f"Bearer {KEY}"
        first = await ask(gateway, background=True)
        await eventually(lambda: gateway.engine.running == 1)
        assert (await ask(gateway)).status_code == 429
        response_id = first.json()["id"]
        assert (await ask(gateway, "GET", f"/{response_id}")).json()["status"] in ("queued", "in_progress")
        assert (await ask(gateway, "POST", f"/{response_id}/cancel")).json()["status"] == "cancelled"
        assert gateway.engine.running == 0
        second = asyncio.create_task(ask(gateway))
        await eventually(lambda: gateway.engine.running == 1)
        second.cancel()


async def test_so_many_at_a_time(make_gateway: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BACKGROUND", 3)
    async with make_gateway(HANGING) as gateway:
        ids = [(await begun(gateway))["id"] for _ in range(3)]
        refused = await ask(gateway, background=True)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        await ask(gateway, "POST", f"/{ids[0]}/cancel")
        ids.append((await begun(gateway))["id"])
        for response_id in ids:
            await ask(gateway, "DELETE", f"/{response_id}")
        assert gateway.engine.running == 0


async def test_events_are_bounded_in_bytes(make_gateway: Callable[..., Any]) -> None:
    """What is not kept as a stream has no such bound."""
    long = Reply("word " * 1200, chunk=5)
    async with make_gateway(long, response_store_bytes=100_000) as gateway:
        streamed = events((await ask(gateway, background=True, stream=True)).text)
        assert [event["type"] for event in streamed[-2:]] == ["response.failed", "error"]
        assert sum(len(str(event)) for event in streamed) < 200_000
        assert (await ended(gateway, streamed[0]["response"]["id"]))["status"] == "failed"
        assert gateway.engine.running == 0
        assert (await ended(gateway, (await begun(gateway))["id"]))["status"] == "completed"


async def test_the_sdk(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(SLOW) as gateway:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway.app, client=("127.0.0.1", 1)))
        client = openai.AsyncOpenAI(api_key="x", base_url="http://localhost/v1", http_client=http)
        response = await client.responses.create(model="test-model", input="hi", background=True)
        while response.status in ("queued", "in_progress"):
            await asyncio.sleep(0.01)
            response = await client.responses.retrieve(response.id)
        assert (response.status, response.output_text) == ("completed", SLOW.text)
        stream = await client.responses.create(model="test-model", input="hi", background=True, stream=True)
        seen = [event async for event in stream]
        response_id = seen[0].response.id
        rest = await client.responses.retrieve(response_id, stream=True, starting_after=4)
        assert [event.sequence_number async for event in rest] == list(range(5, len(seen)))
        assert (await client.responses.cancel(response_id)).status == "completed"
