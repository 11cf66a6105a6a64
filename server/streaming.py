"""Server-sent events, written with no work per chunk that could have been done before.

``EventStream`` sends what a generator of ready byte strings yields. The status line waits for the first chunk (or
``start_timeout``), so that a refusal before the first token is a plain HTTP error; afterwards a failure is an error
event, never a silent end. Silence is filled with comments and, more rarely, with a real empty chunk. When the client
leaves, the generator is closed, which aborts the generation. A client that stops reading stalls ``send``; the
connection's write timeout (server/http_protocol.py) then ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.context import context_of
from server.disconnect import disconnected
from server.errors import ApiError, ClientDisconnected, translate

LOG = logging.getLogger("callgate.server")

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
_LINE_ENDS = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))
"""Characters that some clients (httpx's ``iter_lines``, and what is built on it) take for the end of a line. In JSON
they stand in strings alone, where they can be written as escapes."""
HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: until the response starts at the latest, and of silence until a comment or an empty chunk."""

    start_timeout: float = 10.0
    comment_interval: float = 15.0
    chunk_interval: float = 45.0

    @property
    def tick(self) -> float:
        return max(0.01, min(self.start_timeout, self.comment_interval, self.chunk_interval) / 4)


def sse(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def openai_error_event(error: ApiError) -> bytes:
    return sse(error.body()) + DONE


class EventStream(Response):
    """chunks: complete events, several at once if they come together. idle_chunk: an event that says nothing.
    on_error: the dialect's way to end a stream that failed."""

    media_type = "text/event-stream; charset=utf-8"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        *,
        idle_chunk: Callable[[], bytes],
        on_error: Callable[[ApiError], bytes] = openai_error_event,
        pace: Pace | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._chunks = chunks
        self.idle_chunk = idle_chunk
        self._on_error = on_error
        self._pace = pace or Pace()

    def comment(self) -> bytes:
        """What fills silence before an empty chunk does."""
        return COMMENT

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = _Writer(send, self.media_type)
        pump = asyncio.create_task(self._pump(writer, context_of(scope).request_id))
        watch = asyncio.create_task(disconnected(receive))
        pulse = asyncio.create_task(self._pulse(writer))
        try:
            await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not pump.done():
                raise ClientDisconnected
            pump.result()
        finally:
            for task in (pump, watch, pulse):
                task.cancel()
            await asyncio.gather(pump, watch, pulse, return_exceptions=True)
            del task, pump  # its exception's traceback holds this frame, and with it the request
        await writer.end()

    async def _pump(self, writer: _Writer, request_id: str) -> None:
        try:
            async with aclosing(self._chunks) as chunks:
                async for chunk in chunks:
                    await writer.write(chunk)
        except Exception as exc:
            if not writer.started:
                raise
            await writer.write(self._last_event(exc, request_id))

    def _last_event(self, exc: Exception, request_id: str) -> bytes:
        error = translate(exc, request_id)
        if error.status >= 500:
            LOG.error("stream %s failed", request_id, exc_info=exc)
        return self._on_error(error)

    async def _pulse(self, writer: _Writer) -> None:
        """Keeps a silent stream alive. Never writes while another write is under way."""
        pace = self._pace
        begun = last_chunk = time.monotonic()
        last_any = begun
        while True:
            await asyncio.sleep(pace.tick)
            now = time.monotonic()
            if writer.last > last_any:
                last_any = last_chunk = writer.last
            if writer.busy or (not writer.started and now - begun < pace.start_timeout):
                continue
            if writer.started and now - last_chunk >= pace.chunk_interval:
                await writer.write(self.idle_chunk())
                last_any = last_chunk = writer.last
            elif not writer.started or now - last_any >= pace.comment_interval:
                await writer.write(self.comment())
                writer.last = last_chunk
                last_any = time.monotonic()


class _Writer:
    """``send`` with a lazily sent response start. ``last``: monotonic time of the last chunk, 0 before any."""

    __slots__ = ("_headers", "_send", "busy", "last", "started")

    def __init__(self, send: Send, media_type: str) -> None:
        self._send = send
        self._headers = ((b"content-type", media_type.encode()), *HEADERS)
        self.started = False
        self.busy = False
        self.last = 0.0

    async def write(self, chunk: bytes) -> None:
        self.busy = True
        if not chunk.isascii():
            for end, escape in _LINE_ENDS:
                chunk = chunk.replace(end, escape)
        if not self.started:
            self.started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers]})
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.busy = False
        self.last = time.monotonic()

    async def end(self) -> None:
        if not self.started:
            await self._send({"type": "http.response.start", "status": 200, "headers": [*self._headers]})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
