"""Responses that are made in the background: the request is answered at once, and whoever knows the id reads how far it
is, follows its events, or cancels it.

A response under way is an entry of the store like any other, and a Job beside it. What it needs of the key's limits it
holds to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from server import limits
from server.context import RequestContext
from server.errors import RateLimited, TooLarge
from server.middleware import as_error
from server.openai.responses.events import ResponseEvents
from server.openai.responses.store import ResponseStore
from server.services import Services

Keep = Callable[[dict[str, Any]], None]
"""Puts a state of the response into the store."""


@dataclass(slots=True)
class Job:
    """One response under way. response: its state. kept: its events so far, each at the place of its sequence number;
    None where nobody asked for them."""

    response: dict[str, Any]
    events: ResponseEvents
    kept: list[bytes] | None
    size: int = 0
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def push(self, chunk: bytes) -> None:
        if self.response["status"] == "queued":
            self.response = {**self.response, "status": "in_progress"}
        if self.kept is not None:
            self.kept += [event + b"\n\n" for event in chunk.split(b"\n\n")[:-1]]
            self.size += len(chunk)
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, place: int = 0) -> AsyncGenerator[bytes, None]:
        """The events from a sequence number on, as they come."""
        while self.kept is not None:
            changed, done = self._changed, self.task is None or self.task.done()
            chunk = b"".join(self.kept[place:])
            place += len(self.kept[place:])
            if chunk:
                yield chunk
            elif done:
                return
            else:
                await changed.wait()


class Background:
    """The jobs of one application, by key and id."""

    def __init__(self, services: Services, store: ResponseStore) -> None:
        self._services = services
        self._store = store
        self._jobs: dict[tuple[str, str], Job] = {}

    def find(self, tenant: str, response_id: str) -> Job | None:
        return self._jobs.get((tenant, response_id))

    def check_room(self, tenant: str) -> None:
        """Raises RateLimited where a key has as many under way as it may have."""
        if sum(owner == tenant for owner, _ in self._jobs) >= limits.MAX_BACKGROUND:
            raise RateLimited(f"Limit reached: {limits.MAX_BACKGROUND} responses in the background at a time.")

    def start(self, job: Job, chunks: AsyncGenerator[bytes, None], keep: Keep, context: RequestContext) -> None:
        keep(job.response)
        key = (context.tenant, str(job.response["id"]))
        self._jobs[key] = job
        job.task = asyncio.create_task(self._run(job, chunks, keep, context))
        job.task.add_done_callback(lambda _: self._ended(key))

    async def _run(self, job: Job, chunks: AsyncGenerator[bytes, None], keep: Keep, context: RequestContext) -> None:
        try:
            with self._services.limiter.hold(context.key_digest):
                async with aclosing(chunks):
                    async for chunk in chunks:
                        job.push(chunk)
                        self._check_size(context.tenant)
        except asyncio.CancelledError:
            keep(job.events.cancelled())
            raise
        except Exception as exc:
            error = as_error(exc, context.request_id)
            keep(job.events.failed(error))
            job.push(job.events.fail(error))

    def _check_size(self, tenant: str) -> None:
        """Raises TooLarge where a key's events are more than it may keep."""
        if sum(job.size for (owner, _), job in self._jobs.items() if owner == tenant) > self._store.share(tenant):
            raise TooLarge("The events of this response are more than can be kept.")

    def _ended(self, key: tuple[str, str]) -> None:
        """Its events stay as long as the response."""
        job, entry = self._jobs.pop(key), self._store.find(*key)
        if entry is not None and job.kept:
            self._store.put(key[0], replace(entry, events=tuple(job.kept)))
        job.wake()

    async def cancel(self, tenant: str, response_id: str) -> None:
        """End it, if it is under way, with what it has."""
        job = self.find(tenant, response_id)
        if job is not None and job.task is not None:
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)
