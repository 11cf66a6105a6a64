"""/v1/conversations: the requests and, only for the OpenAPI document, the answers."""

from __future__ import annotations

from typing import Any

import msgspec


class ConversationRequest(msgspec.Struct, kw_only=True, frozen=True):
    items: list[Any] | None = None
    metadata: dict[str, str] | None = None


class ConversationUpdate(msgspec.Struct, kw_only=True, frozen=True):
    metadata: dict[str, str] | None


class ConversationItemsRequest(msgspec.Struct, kw_only=True, frozen=True):
    items: list[Any]


class ConversationBody(msgspec.Struct):
    id: str
    object: str
    created_at: int
    metadata: dict[str, str]


class ConversationItemBody(msgspec.Struct):
    id: str
    type: str
