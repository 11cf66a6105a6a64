"""EventStream: signs of life, ends, and what happens when a write is slow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
import pytest

from server.errors import ClientDisconnected, Unavailable
from server.streaming import COMMENT, DONE, EventStream, Pace
from tests.fakes import Reply

IDLE = b"data: {}\n\n"
SCOPE = {"type": "http", "headers": []}


class Client:
    """The other end of an ASGI connection."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.left = asyncio.Event()
        self.reading = asyncio.Event()
        self.reading.set()

    async def receive(self) -> Any:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reading.wait()
        self.messages.append(message)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.messages if message["type"] == "http.response.body"]


def stream(chunks: AsyncGenerator[bytes, None], **pace: float) -> EventStream:
    return EventStream(chunks, idle_chunk=lambda: IDLE, pace=Pace(**pace))


async def run(chunks: AsyncGenerator[bytes, None], client: Client, **pace: float) -> None:
    await stream(chunks, **pace)(SCOPE, client.receive, client.send)


async def test_plain() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        yield b"b"

    client = Client()
    await run(chunks(), client)
    assert client.messages[0]["status"] == 200
    assert client.bodies == [b"a", b"b", b""]
    assert client.messages[-1]["more_body"] is False


ODD_ENDS = "a\u2028b\u2029c\x85d\\\u2028e"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 50}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x"}]}),
        ("/api/generate", {"prompt": "x"}),
        ("/generate", {"text": "x"}),
    ],
)
async def test_no_character_of_the_answer_ends_a_line(
    make_gateway: Callable[..., Any], path: str, fields: dict[str, Any]
) -> None:
    """Clients that read lines as Python's ``splitlines`` does (httpx's ``iter_lines``: ollama-python, LiteLLM) would
    be left with half a JSON text. What the characters are stays the same."""
    async with make_gateway(Reply(ODD_ENDS)) as gateway:
        body = {"model": "test-model", "stream": True, **fields}
        response = await gateway.client.post(path, content=orjson.dumps(body))
    assert response.status_code == 200, response.text
    lines = [line for line in response.text.splitlines() if line and not line.startswith(("event: ", ":"))]
    values = [orjson.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]
    assert any(ODD_ENDS[:-1] in text for value in values for text in _strings(value))


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        return [text for item in (value.values() if isinstance(value, dict) else value) for text in _strings(item)]
    return [value] if isinstance(value, str) else []


async def test_silence_is_filled_with_comments_and_sometimes_a_chunk() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        await asyncio.sleep(0.5)
        yield b"b"

    client = Client()
    await run(chunks(), client, start_timeout=1, comment_interval=0.04, chunk_interval=0.2)
    assert client.bodies.count(IDLE) in (1, 2, 3)
    assert 2 <= client.bodies.count(COMMENT) <= 12
    assert client.bodies[0] == b"a"
    assert client.bodies[-2:] == [b"b", b""]


async def test_a_slow_start_begins_the_response_without_a_chunk() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.3)
        raise Unavailable("too late for a status")
        yield b""

    client = Client()
    await run(chunks(), client, start_timeout=0.05)
    assert client.messages[0]["status"] == 200
    assert client.bodies[0] == COMMENT
    assert b'"too late for a status"' in client.bodies[-2]
    assert client.bodies[-2].endswith(DONE)


async def test_an_early_failure_is_raised() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        raise Unavailable("no")
        yield b""

    client = Client()
    with pytest.raises(Unavailable):
        await run(chunks(), client)
    assert client.messages == []


async def test_a_late_failure_is_an_error_event_without_internals(caplog: pytest.LogCaptureFixture) -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"a"
        raise RuntimeError("/secret")

    client = Client()
    await run(chunks(), client)
    assert b'"error"' in client.bodies[1]
    assert b"secret" not in client.bodies[1]
    assert client.bodies[1].endswith(DONE)
    assert "/secret" in caplog.text, "the operator reads what the client does not"


async def test_leaving_closes_the_generator() -> None:
    closed = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"a"
            await asyncio.sleep(60)
        finally:
            closed.set()

    client = Client()
    task = asyncio.create_task(run(chunks(), client))
    await asyncio.sleep(0.02)
    client.left.set()
    with pytest.raises(ClientDisconnected):
        await asyncio.wait_for(task, 1)
    assert closed.is_set()


async def test_a_client_that_does_not_read_holds_the_generator_back() -> None:
    produced = 0

    async def chunks() -> AsyncGenerator[bytes, None]:
        nonlocal produced
        for _ in range(100):
            produced += 1
            yield b"a"

    client = Client()
    client.reading.clear()
    task = asyncio.create_task(run(chunks(), client, comment_interval=0.02, chunk_interval=0.04))
    await asyncio.sleep(0.2)
    assert produced == 1
    client.reading.set()
    await asyncio.wait_for(task, 2)
    assert client.bodies == [b"a"] * 100 + [b""], "no keep-alive between chunks while a write waits"


async def test_an_empty_stream_still_answers() -> None:
    async def chunks() -> AsyncGenerator[bytes, None]:
        return
        yield b""

    client = Client()
    await run(chunks(), client)
    assert client.messages[0]["status"] == 200
    assert client.bodies == [b""]
