"""JSON responses through orjson, and answers that are given up when the client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive

from server.errors import ClientDisconnected

T = TypeVar("T")

MANY_LOGPROBS = 500
"""Tokens whose logprobs are written in a worker thread: with 20 alternatives each takes some 50 microseconds."""


async def off_loop(large: bool, work: Callable[..., T], *args: Any) -> T:
    """``work(*args)``; in a worker thread where it would hold up every other client."""
    return await asyncio.to_thread(work, *args) if large else work(*args)


class JsonArray:
    """An array that is serialized as it grows, so that no answer is written out all at once."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts = bytearray()

    def extend(self, items: Sequence[Any]) -> None:
        if items:
            if self._parts:
                self._parts += b","
            self._parts += memoryview(orjson.dumps(items))[1:-1]

    def json(self) -> orjson.Fragment:
        """For orjson, in place of a list."""
        return orjson.Fragment(b"[" + self._parts + b"]")


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers=dict(headers or {}), media_type="application/json")


async def disconnected(receive: Receive) -> None:
    """Return when the client has left (the body must have been read)."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled when the client leaves first; then raises ClientDisconnected."""
    task = asyncio.create_task(work)
    watch = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnected
        return task.result()
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)
        del task  # its exception's traceback holds this frame: a cycle that keeps the request until it is collected
