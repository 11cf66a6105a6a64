"""Work that is given up when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

from server.errors import ClientDisconnected

T = TypeVar("T")


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
