"""Errors in Ollama's shape: ``{"error": "message"}``."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from server.errors import ApiError

_HERE = frozenset({"chat", "generate", "embed", "embeddings", "ps", "show", "tags", "version"})
_ELSEWHERE = frozenset({"blobs", "copy", "create", "delete", "pull", "push"})
"""What changes which models there are: clients that ask for it read of it in their own shape, too."""


def is_ollama(scope: Scope) -> bool:
    """Whether a request is of this dialect, by its path. Other paths below /api are base URLs of other servers."""
    words = scope["path"].split("/", 3)[1:3]
    return len(words) == 2 and words[0] == "api" and words[1] in _HERE | _ELSEWHERE


def ollama_error(error: ApiError) -> bytes:
    return orjson.dumps({"error": error.body()["error"]["message"]})
