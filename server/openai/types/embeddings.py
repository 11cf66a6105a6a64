"""POST /v1/embeddings: the request."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class EmbeddingRequest(msgspec.Struct, kw_only=True, frozen=True):
    input: str | list[Any]
    """A string, strings, token ids, or lists of token ids."""
    model: str | UnsetType = UNSET
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    user: str | None = None
    cache_salt: str | None = None


class EmbeddingBody(msgspec.Struct):
    """Only for the OpenAPI document: what an answer looks like."""

    object: str
    data: list[dict[str, Any]]
    model: str
    usage: dict[str, Any]
