"""GET, DELETE and cancelling of responses by their id, and their input."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.context import context_of
from server.errors import BadRequest, Unsupported, invalid
from server.json_response import json_response
from server.openai.responses.background import Background
from server.openai.responses.items import page
from server.openai.responses.store import ResponseStore, StoredResponse
from server.services import Services
from server.streaming import COMMENT, EventStream


class StoredResponses:
    def __init__(self, services: Services, store: ResponseStore, background: Background) -> None:
        self._services = services
        self._store = store
        self._background = background

    async def retrieve(self, request: Request) -> Response:
        entry, query = self._get(request), request.query_params
        if query.get("stream", "false").lower() not in ("", "false", "0"):
            place = _place(query.get("starting_after"))
            return EventStream(self._events(request, entry, place), idle_chunk=_idle, pace=self._services.pace)
        job = self._background.find(_tenant(request), entry.id)
        return json_response(job.response) if job is not None else _plain(entry)

    def _events(self, request: Request, entry: StoredResponse, place: int) -> AsyncGenerator[bytes, None]:
        job = self._background.find(_tenant(request), entry.id)
        if job is not None and job.kept is not None:
            return job.follow(place)
        if not entry.events:
            raise Unsupported("stream", "Only responses that were made in the background as a stream can be resumed.")
        return _kept(entry, place)

    async def delete(self, request: Request) -> Response:
        response_id, tenant = request.path_params["response_id"], _tenant(request)
        self._get(request)
        await self._background.cancel(tenant, response_id)
        self._store.delete(tenant, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, request: Request) -> Response:
        entry = self._get(request)
        if not orjson.loads(entry.response)["background"]:
            raise BadRequest("Only background responses can be cancelled.", param="response_id")
        await self._background.cancel(_tenant(request), entry.id)
        return _plain(self._get(request))

    async def input_items(self, request: Request) -> Response:
        """The request's own input, newest first unless ``order=asc``, ``limit`` (20) of them ``after`` an id."""
        return json_response(page(orjson.loads(self._get(request).input), request.query_params))

    def _get(self, request: Request) -> StoredResponse:
        return self._store.get(_tenant(request), request.path_params["response_id"])


def _tenant(request: Request) -> str:
    return context_of(request.scope).tenant


def _plain(entry: StoredResponse) -> Response:
    return Response(entry.response, media_type="application/json")


def _place(starting_after: str | None) -> int:
    """The sequence number of the first event that is wanted. Raises BadRequest."""
    if starting_after is None:
        return 0
    if not starting_after.isascii() or not starting_after.isdecimal() or len(starting_after) > 9:
        raise invalid("starting_after", "a sequence number is expected")
    return int(starting_after) + 1


async def _kept(entry: StoredResponse, place: int) -> AsyncGenerator[bytes, None]:
    yield b"".join(entry.events[place:])


def _idle() -> bytes:
    return COMMENT
