"""POST /v1/messages and /v1/messages/count_tokens: the requests. Unknown fields are ignored, types are strict.

``messages``, ``system``, ``tools`` and the rest of the nested fields stay plain JSON here and are checked by
server/anthropic/messages.py and fields.py with paths in the errors.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class CountTokensRequest(msgspec.Struct, kw_only=True, frozen=True):
    messages: list[Any]
    model: str | UnsetType = UNSET
    """Omitted: the served model. null is refused."""
    system: str | list[Any] | None = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True, frozen=True):
    max_tokens: int
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: dict[str, Any] | None = None
    seed: int | None = None
    priority: int | None = None
    cache_salt: str | None = None


class MessageBody(msgspec.Struct):
    """Only for the OpenAPI document: what a whole answer looks like."""

    id: str
    type: str
    role: str
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class TokenCountBody(msgspec.Struct):
    input_tokens: int
