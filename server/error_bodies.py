"""An error as the dialect of its request writes it."""

from __future__ import annotations

import orjson
from starlette.types import Scope

from server.anthropic.errors import error_object, is_anthropic
from server.errors import ApiError
from server.ollama.errors import is_ollama, ollama_error

_OF_KEYS = (401, 403)
"""Ollama knows no keys, so its clients have no words for these: they read as on every other path."""


def error_body(error: ApiError, scope: Scope, request_id: str) -> bytes:
    if is_anthropic(scope):
        return orjson.dumps(error_object(error, request_id))
    return ollama_error(error) if is_ollama(scope) and error.status not in _OF_KEYS else error.json()
