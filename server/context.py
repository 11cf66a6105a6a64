"""What the layers of one HTTP request share: its id, who sent it, and what the access log will say."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field

from starlette.types import Scope


@dataclass(slots=True)
class RequestContext:
    """Made by EdgeMiddleware, completed by AuthMiddleware and the endpoint."""

    request_id: str = field(default_factory=lambda: "req_" + secrets.token_hex(16))
    started: float = field(default_factory=time.monotonic)
    key_digest: bytes | None = None
    tenant: str = ""
    """Cache namespace of the key, "" where nobody is authenticated."""
    deployment: str = ""
    """The model that the path names (server/other_paths.py); it goes before the body's."""
    unlimited: bool = False
    """The path is of a server where a ``max_tokens`` of -1 is no limit."""
    response_id: str = ""
    """The id in the answer's body; POST /abort_request takes it, like the request id."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


def context_of(scope: Scope) -> RequestContext:
    """The request's context; made on the spot where no middleware did."""
    state = scope.setdefault("state", {})
    context = state.get("callgate")
    if not isinstance(context, RequestContext):
        context = state["callgate"] = RequestContext()
    return context
