"""A streaming chat completion over a socket of its own, with as little work a token as Python allows.

The client shares the machine with the server that it measures, so it speaks plain HTTP/1.1 on asyncio streams:
no client library, one connection a request, one JSON parse an event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import orjson

from benchmarks.serving.workloads import Request


@dataclass
class Answer:
    """What one request gave. Times are of ``time.perf_counter``; ``gaps`` are the seconds between two deltas."""

    expected: str | None
    started: float = 0.0
    first: float | None = None
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    deltas: int = 0
    text: str = ""
    calls: dict[int, dict[str, str]] = field(default_factory=dict)
    finish: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None
    capped: bool = False

    def take(self, event: dict[str, Any], now: float) -> None:
        """One server-sent event."""
        if usage := event.get("usage"):
            self.prompt_tokens, self.output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        choices = event.get("choices") or ()
        if not choices and event.get("error"):
            self.error = f"stream error: {event['error']}"[:300]
        for choice in choices:
            self.take_delta(choice.get("delta") or {}, now)
            self.finish = choice.get("finish_reason") or self.finish

    def take_delta(self, delta: dict[str, Any], now: float) -> None:
        text = (delta.get("content") or "") + (delta.get("reasoning_content") or delta.get("reasoning") or "")
        calls = delta.get("tool_calls")
        if not text and not calls:
            return
        if self.first is None:
            self.first = now
        else:
            self.gaps.append(now - self.last)
        self.last = now
        self.deltas += 1
        self.text += text
        for part in calls or ():
            call = self.calls.setdefault(part.get("index") or 0, {"name": "", "arguments": ""})
            function = part.get("function") or {}
            call["name"] = function.get("name") or call["name"]
            arguments = function.get("arguments") or ""
            call["arguments"] += arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


@dataclass(frozen=True)
class Endpoint:
    """``base_url`` ends with /v1."""

    base_url: str
    api_key: str = ""

    def head(self, length: int) -> bytes:
        url = urlsplit(self.base_url)
        authorization = f"Authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        return (
            f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\n"
            f"Accept: text/event-stream\r\n{authorization}Content-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = urlsplit(self.base_url)
        return await asyncio.open_connection(url.hostname, url.port or 80, limit=1 << 24)


async def ask(endpoint: Endpoint, body: dict[str, Any], request: Request) -> Answer:
    """Streams one completion. Failures are in ``error``; a cancelled one is returned as ``capped``."""
    answer = Answer(request.expected, started=time.perf_counter())
    writer = None
    try:
        reader, writer = await endpoint.connect()
        payload = orjson.dumps(body)
        writer.write(endpoint.head(len(payload)) + payload)
        await read_answer(reader, answer)
    except asyncio.CancelledError:
        answer.capped = True
    except (OSError, EOFError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"[:300]
    finally:
        if writer is not None:
            writer.close()
    return answer


async def read_answer(reader: asyncio.StreamReader, answer: Answer) -> None:
    """The response into ``answer``. ValueError: its status is not 200, EOFError: it broke off."""
    head = await reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    pieces = chunks(reader) if b"transfer-encoding: chunked" in head.lower() else blocks(reader)
    if status != b"200":
        text = b"".join([piece async for piece in pieces])
        raise ValueError(f"HTTP {status.decode()}: {text.decode(errors='replace')[:300]}")
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        now = time.perf_counter()
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            answer.take(orjson.loads(data), now)
    if answer.finish is None and answer.error is None:
        raise EOFError("the stream ended without a finish reason")


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The chunks of a chunked body."""
    while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


async def blocks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """A body that ends with the connection."""
    while block := await reader.read(1 << 16):
        yield block
