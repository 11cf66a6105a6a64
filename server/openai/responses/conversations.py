"""/v1/conversations: items kept under one name, for requests that say ``conversation`` instead of sending them.

A conversation lies in the same store as responses, with the same bounds: it is an entry whose turns grow.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.body import convert
from server.context import context_of
from server.errors import BadRequest, NotFound, TooLarge, invalid, quote
from server.json_response import json_response
from server.openai.responses.input import read_items
from server.openai.responses.items import listed, page, parsed
from server.openai.responses.store import ResponseStore, StoredResponse
from server.openai.sampling import check_metadata
from server.openai.types.conversations import ConversationItemsRequest, ConversationRequest, ConversationUpdate
from server.param_names import renamed
from server.services import Services


class ConversationNotFound(NotFound):
    def __init__(self, conversation_id: str, param: str) -> None:
        super().__init__(f"Conversation with id {quote(conversation_id)} not found.", param=param)


class Conversations:
    """What the store holds of them. Another key's are unknown."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    def get(self, tenant: str, conversation_id: str, param: str = "conversation_id") -> StoredResponse:
        """Raises ConversationNotFound, which names ``param``."""
        entry = self._store.find(tenant, conversation_id)
        if entry is None or not entry.conversation:
            raise ConversationNotFound(conversation_id, param)
        return entry

    def put(self, tenant: str, entry: StoredResponse) -> None:
        """Raises TooLarge where it is more than one key may keep."""
        if not self._store.put(tenant, entry):
            raise TooLarge("The conversation has become too large to be kept.")

    def extend(self, tenant: str, conversation_id: str, *turns: bytes) -> None:
        """More items at its end. One that was deleted meanwhile, or would be too large, is left as it is."""
        entry = self._store.find(tenant, conversation_id)
        if entry is not None:
            self._store.put(tenant, replace(entry, turns=(*entry.turns, *turns)))

    def delete(self, tenant: str, conversation_id: str) -> None:
        self._store.drop(tenant, self.get(tenant, conversation_id).id)


def conversation_id(given: str | dict[str, Any] | None) -> str | None:
    """``conversation`` of a request, an id or an object with one. Raises BadRequest."""
    if isinstance(given, dict):
        given = given.get("id")
        if not isinstance(given, str):
            raise invalid("conversation.id", "a string is expected")
    return given


class ConversationsHandler:
    def __init__(self, services: Services, store: ResponseStore) -> None:
        self._services = services
        self._kept = Conversations(store)

    async def create(self, request: Request) -> Response:
        asked = convert(await self._services.read_json(request.scope, request.receive), ConversationRequest)
        fresh = {"id": "conv_" + secrets.token_hex(24), "object": "conversation", "created_at": int(time.time())}
        body = {**fresh, "metadata": _metadata(asked.metadata)}
        turns = (orjson.dumps(_items(asked.items)),) if asked.items else ()
        entry = StoredResponse(str(fresh["id"]), orjson.dumps(body), b"[]", turns, conversation=True)
        self._kept.put(_tenant(request), entry)
        return json_response(body)

    async def retrieve(self, request: Request) -> Response:
        return Response(self._get(request).response, media_type="application/json")

    async def update(self, request: Request) -> Response:
        """Other metadata."""
        asked = convert(await self._services.read_json(request.scope, request.receive), ConversationUpdate)
        entry = self._get(request)
        body = {**orjson.loads(entry.response), "metadata": _metadata(asked.metadata)}
        self._kept.put(_tenant(request), replace(entry, response=orjson.dumps(body)))
        return json_response(body)

    async def delete(self, request: Request) -> Response:
        name = request.path_params["conversation_id"]
        self._kept.delete(_tenant(request), name)
        return json_response({"id": name, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, request: Request) -> Response:
        asked = convert(await self._services.read_json(request.scope, request.receive), ConversationItemsRequest)
        entry, items = self._get(request), _items(asked.items)
        if not items:
            raise BadRequest("'items' must hold at least one item.", param="items")
        self._kept.put(_tenant(request), replace(entry, turns=(*entry.turns, orjson.dumps(items))))
        return json_response(page(items, {"order": "asc"}, whole=True))

    async def list_items(self, request: Request) -> Response:
        return json_response(page(await parsed(self._get(request).turns), request.query_params))

    async def retrieve_item(self, request: Request) -> Response:
        _, items, place = await self._place(request)
        return json_response(listed(items[place]))

    async def delete_item(self, request: Request) -> Response:
        turn, items, place = await self._place(request)
        entry = self._get(request)
        turns = list(entry.turns)
        turns[turn] = orjson.dumps(items[:place] + items[place + 1 :])
        self._kept.put(_tenant(request), replace(entry, turns=tuple(turns)))
        return Response(entry.response, media_type="application/json")

    async def _place(self, request: Request) -> tuple[int, list[dict[str, Any]], int]:
        """Where the item is that the path names: the turn's number, its items, and the place among them."""
        wanted = request.path_params["item_id"]
        for turn, written in enumerate(self._get(request).turns):
            items = await parsed((written,))
            for place, item in enumerate(items):
                if item["id"] == wanted:
                    return turn, items, place
        raise NotFound(f"Item with id {quote(wanted)} not found in this conversation.", param="item_id")

    def _get(self, request: Request) -> StoredResponse:
        return self._kept.get(_tenant(request), request.path_params["conversation_id"])


def _tenant(request: Request) -> str:
    return context_of(request.scope).tenant


def _metadata(metadata: dict[str, str] | None) -> dict[str, str]:
    check_metadata(metadata)
    return metadata or {}


def _items(given: Sequence[Any] | None) -> list[dict[str, Any]]:
    """Checked items, each with an id. Items of their own are kept, not names of others."""
    with renamed(lambda param: "items" + param.removeprefix("input")):
        items = read_items(list(given or ()), continues=True)
        for index, item in enumerate(items):
            if item["type"] == "item_reference":
                raise invalid(f"input[{index}].type", "an item itself is expected, not a reference to one")
    return items
