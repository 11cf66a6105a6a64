"""POST /v1/responses: the request. Answers are written by server/openai/responses/events.py as dicts.

``input``, ``tools``, ``tool_choice``, ``text`` and ``reasoning`` stay plain JSON here and are checked by
server/openai/responses/input.py and server/openai/responses/tools.py with paths in the errors.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.openai.types.common import SamplingFields


class ResponsesRequest(SamplingFields, kw_only=True, frozen=True):
    input: str | list[Any] | None = None
    """May be missing after ``previous_response_id``."""
    model: str | UnsetType = UNSET
    """Omitted: the served model. null is refused."""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    """An id, or an object with one."""
    store: bool | None = None
    background: bool | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None

    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ResponseBody(msgspec.Struct):
    """Only for the OpenAPI document: what a whole answer looks like."""

    id: str
    object: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, Any] | None


class InputTokensBody(msgspec.Struct):
    object: str
    input_tokens: int


class InputItemsBody(msgspec.Struct):
    object: str
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponseBody(msgspec.Struct):
    id: str
    object: str
    deleted: bool
