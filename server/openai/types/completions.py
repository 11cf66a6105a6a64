"""POST /v1/completions: the request."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.openai.types.common import SamplingFields


class CompletionRequest(SamplingFields, kw_only=True, frozen=True):
    prompt: str | list[Any]
    """A string, strings, token ids, or lists of token ids."""
    model: str | UnsetType = UNSET
    suffix: str | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    add_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None
    return_token_ids: bool | None = None


class CompletionBody(msgspec.Struct):
    """Only for the OpenAPI document: what a whole answer looks like."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
