"""JSON responses through orjson, and large ones without holding up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from starlette.responses import Response

T = TypeVar("T")

OFF_LOOP_BYTES = 256 * 1024
"""JSON of more bytes is parsed in a worker thread."""
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
