"""Errors in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``.

``param`` and ``code`` of our own error object are kept beside them: Anthropic's clients ignore what they do not know,
and a client that was written for the other routes finds what it expects.
"""

from __future__ import annotations

from typing import Any

from starlette.types import Scope

from server.errors import ApiError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    503: "overloaded_error",
}


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is of this dialect, by its path or its version header: decides the shape of its errors, those
    that come before any handler included."""
    path = scope["path"]
    named = path == "/v1/messages" or path.startswith("/v1/messages/")
    return named or any(name == b"anthropic-version" for name, _ in scope["headers"])


def error_object(error: ApiError, request_id: str = "") -> dict[str, Any]:
    inner = {**error.body()["error"], "type": _TYPES.get(error.status, "api_error")}
    if error.details is not None:
        inner["details"] = dict(error.details)
    return {"type": "error", "error": inner, "request_id": request_id or None}
