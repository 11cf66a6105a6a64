"""Generations that can be aborted by id (POST /abort_request): exact ids, and only those of one's own tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager

from engine.messages import GenerateOutput
from server.errors import BadRequest


class RequestAborted(BadRequest):
    """400, because clients repeat what a 5xx ends by themselves."""

    code = "request_aborted"


class Abortable:
    """One generation. ``abort`` ends it at once, also while it waits for the engine."""

    __slots__ = ("_waiting", "aborted")

    def __init__(self) -> None:
        self.aborted = False
        self._waiting: set[asyncio.Task[object]] = set()

    def abort(self) -> None:
        self.aborted = True
        for task in self._waiting:
            task.cancel()

    async def outputs(self, stream: AsyncIterator[GenerateOutput]) -> AsyncGenerator[GenerateOutput, None]:
        """``stream``, which is closed at the end. Raises RequestAborted once ``abort`` was called."""
        close = getattr(stream, "aclose", None)
        task = asyncio.current_task()
        assert task is not None
        try:
            while not self.aborted:
                self._waiting.add(task)
                try:
                    output = await anext(stream)
                except StopAsyncIteration:
                    return
                except asyncio.CancelledError:
                    if not self.aborted or task.uncancel():
                        raise
                    break
                finally:
                    self._waiting.discard(task)
                yield output
            raise RequestAborted("The request was aborted by its id.")
        finally:
            if close is not None:
                await close()
            del task  # it will hold the exception whose traceback holds this frame: a cycle, and the request in it


class RunningRequests:
    """The generations of one application, by tenant and id."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], set[Abortable]] = {}

    @contextmanager
    def enter(self, tenant: str, ids: Iterable[str]) -> Iterator[Abortable]:
        """Makes one generation known under ``ids`` ("" is none) while it runs."""
        generation = Abortable()
        keys = [(tenant, name) for name in dict.fromkeys(ids) if name]
        for key in keys:
            self._found.setdefault(key, set()).add(generation)
        try:
            yield generation
        finally:
            for key in keys:
                same = self._found[key]
                same.discard(generation)
                if not same:
                    del self._found[key]

    def abort(self, tenant: str, name: str) -> int:
        """How many running generations of this tenant had exactly this id; all of them end."""
        found = self._found.get((tenant, name), set())
        for generation in found:
            generation.abort()
        return len(found)

    def __len__(self) -> int:
        return len(self._found)
