"""What the load generator counts, against servers that say exactly what was sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from benchmarks.serving.client import Endpoint
from benchmarks.serving.measure import Limits, Target, run
from benchmarks.serving.workloads import WORKLOADS

Respond = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


@asynccontextmanager
async def serving(respond: Respond) -> AsyncIterator[Target]:
    """A server on a real socket that hands each body to ``respond``."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        await respond(json.loads(await reader.readexactly(length)), writer)
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield Target(Endpoint(f"http://127.0.0.1:{port}/v1"), "m")


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {json.dumps({'choices': choices})}\n\n".encode()


def usage(prompt: int, output: int, cached: int) -> bytes:
    details = {"prompt_tokens": prompt, "completion_tokens": output, "prompt_tokens_details": {"cached_tokens": cached}}
    return f"data: {json.dumps({'choices': [], 'usage': details})}\n\n".encode()


def stream(*parts: bytes, size: int | None) -> bytes:
    """A response body, in chunks of ``size`` bytes whatever the events are, or not chunked at all."""
    body = b"".join(parts) + b"data: [DONE]\n\n"
    if size is None:
        return HEAD + b"\r\n" + body
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n"


@pytest.mark.parametrize("size", [None, 1, 7, 4096])
async def test_tokens_are_what_the_server_says_however_events_are_cut(size: int | None) -> None:
    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event({"content": "héllo"}), event({}, "length"), usage(50, 128, 16), size=size))

    async with serving(respond) as target:
        row = await run(WORKLOADS["W1"], target, 1, Limits())
    assert (row["ok"], row["errors"], row["capped"]) == (3, 0, 0)
    assert (row["prompt_tok_mean"], row["out_tok_mean"], row["cached_tok"]) == (50, 128, 48)
    assert (row["finish"], row["counted_by"]) == ({"length": 3}, ["server"])


async def test_a_server_without_usage_is_counted_by_its_deltas() -> None:
    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*[event({"content": "a"})] * 5, event({}, "stop"), size=None))

    async with serving(respond) as target:
        row = await run(WORKLOADS["W1"], target, 1, Limits(requests=2))
    assert (row["n"], row["out_tok_mean"], row["counted_by"]) == (2, 5, ["deltas"])


async def test_no_more_requests_run_at_once_than_the_workload_says() -> None:
    active: list[int] = [0]
    seen: dict[str, int] = {}

    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        active[0] += 1
        seen["most"] = max(seen.get("most", 0), active[0])
        await asyncio.sleep(0.01)
        active[0] -= 1
        writer.write(stream(event({"content": "a"}, "stop"), size=None))

    async with serving(respond) as target:
        for name in ("W1", "W3", "W4", "W5", "W7"):
            seen["most"] = 0
            await run(WORKLOADS[name], target, 1, Limits())
            assert seen["most"] == WORKLOADS[name].concurrency, name


async def test_turns_of_an_agent_follow_one_another() -> None:
    order: dict[str, list[int]] = {}

    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        order.setdefault(body["messages"][1]["content"], []).append(len(body["messages"]))
        writer.write(stream(event({"content": "a"}, "stop"), size=None))

    async with serving(respond) as target:
        await run(WORKLOADS["W7"], target, 1, Limits())
    assert len(order) == 4
    assert all(lengths == list(range(2, 18, 2)) for lengths in order.values())


def call(name: str, arguments: str) -> list[bytes]:
    """A call in two deltas, its arguments cut in the middle."""
    half = len(arguments) // 2
    first = {"index": 0, "id": "c", "function": {"name": name, "arguments": arguments[:half]}}
    second = {"index": 0, "function": {"arguments": arguments[half:]}}
    return [event({"tool_calls": [first]}), event({"tool_calls": [second]}, "tool_calls")]


GOOD = '{"city": "Paris", "unit": "celsius", "days": 3}'
SHARES = ("tool_call_share", "args_json_share", "schema_valid_share", "right_tool_share")


@pytest.mark.parametrize(
    ("deltas", "shares"),
    [
        (call("get_weather", GOOD), (1, 1, 1, 1)),
        (call("get_weather", '{"city": "Paris", "unit": "kelvin"}'), (1, 1, 0, 1)),
        (call("get_weather", '{"city": "Paris"'), (1, 0, 0, 1)),
        (call("search_files", '{"query": "Paris", "max_results": 1}'), (1, 1, 1, 0)),
        (call("unknown", "{}"), (1, 1, 0, 0)),
        ([event({"content": GOOD}, "stop")], (0, 0, 0, 0)),
    ],
)
async def test_calls_are_judged(deltas: list[bytes], shares: tuple[float, ...]) -> None:
    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(stream(*deltas, size=None))

    async with serving(respond) as target:
        row = await run(WORKLOADS["W5"], target, 1, Limits(requests=1))
    assert tuple(row[key] for key in SHARES) == shares


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ('{"action": "get_weather", "subject": "a", "count": 1, "urgent": false, "tags": ["work"]}', (1, 1)),
        ('{"action": "search_files", "subject": "a", "count": 1, "urgent": false, "tags": []}', (1, 0)),
        ('{"action": "get_weather", "subject": "a", "count": 1, "urgent": false}', (0, 1)),
        ('["get_weather"]', (0, 0)),
        ("get_weather", (0, 0)),
    ],
)
async def test_json_answers_are_judged(text: str, shares: tuple[float, ...]) -> None:
    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(stream(event({"content": text}, "stop"), size=None))

    async with serving(respond) as target:
        row = await run(WORKLOADS["W6"], target, 1, Limits(requests=1))
    assert (row["schema_valid_share"], row["right_tool_share"]) == shares


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\n{"a', 'ValueError: HTTP 400: {"a'),
        (b"", "IncompleteReadError"),
        (HEAD + b'\r\ndata: {"error": {"message": "no"}}\n\n', "stream error: {'message': 'no'}"),
        (HEAD + b"\r\ndata: {broken\n\n", "JSONDecodeError"),
    ],
)
async def test_what_fails_is_counted_as_an_error(answer: bytes, error: str) -> None:
    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    async with serving(respond) as target:
        row = await run(WORKLOADS["W1"], target, 1, Limits())
    assert (row["ok"], row["errors"]) == (0, 3)
    assert row["first_error"].startswith(error)
    assert row["ttft_mean_s"] is None


async def test_a_stream_that_breaks_off_is_an_error() -> None:
    """Cut inside a chunk, and ended without finish reason or [DONE]: neither is an answer."""
    cuts = iter(
        [
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n20\r\ndata: {",
            HEAD + b"\r\n" + event({"content": "a"}),
            stream(event({"content": "a"}, "stop"), size=None),
        ]
    )

    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(next(cuts))

    async with serving(respond) as target:
        row = await run(WORKLOADS["W1"], target, 1, Limits())
    assert (row["ok"], row["errors"]) == (1, 2)


async def test_what_is_late_is_capped_and_its_deltas_count() -> None:
    never = asyncio.Event()

    async def respond(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + b"\r\n" + event({"content": "a"}) + event({"content": "b"}))
        await never.wait()

    async with serving(respond) as target:
        row = await run(WORKLOADS["W1"], target, 1, Limits(cap=0.3))
        never.set()
    assert (row["ok"], row["errors"], row["capped"]) == (0, 0, 3)
    assert round(row["out_tok_s"] * row["wall_s"]) == 2
