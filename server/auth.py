"""Who may call what: default deny, decided on the ASGI path alone.

Three levels. ``public`` paths are the health probes and the playground's page (no word of the server is in it),
matched exactly. ``admin`` paths need an admin key; where no key at all is configured they answer only to loopback
clients that name a loopback host and no foreign Origin. Everything else, unknown paths included, is ``user`` and needs
a key as soon as one is configured.

A key travels as ``Authorization: Bearer KEY``, as ``x-api-key: KEY`` (Anthropic's clients) or as ``api-key: KEY``
(Azure's). Keys are compared in constant time over SHA-256 digests. Each key is a tenant of its own: an HMAC of its
digest names the prefix-cache namespace, so tenants never share cached prefixes and never see each other's stored
responses.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Iterable
from typing import Literal

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.args import Secret, ServerArgs
from server.context import context_of
from server.errors import Forbidden, Unauthorized
from server.rate_limit import RateLimiter

Level = Literal["public", "user", "admin"]

PUBLIC_PATHS = frozenset({"/", "/health", "/health/live", "/health/ready"})
ADMIN_PATHS = frozenset({"/flush_cache"})
USER_ROUTES = frozenset(
    {
        "/abort_request",
        "/api/chat",
        "/api/embed",
        "/api/embeddings",
        "/api/generate",
        "/api/ps",
        "/api/show",
        "/api/tags",
        "/api/v0/models",
        "/api/v0/models/{model_id:path}",
        "/api/version",
        "/apply-template",
        "/completion",
        "/detokenize",
        "/generate",
        "/get_model_info",
        "/get_server_info",
        "/infill",
        "/metrics",
        "/openapi.json",
        "/parse_function_call",
        "/props",
        "/separate_reasoning",
        "/server_info",
        "/slots",
        "/tokenize",
        "/version",
        "/v1/chat/completions",
        "/v1/chat/completions/input_tokens",
        "/v1/chat/completions/render",
        "/v1/completions",
        "/v1/conversations",
        "/v1/conversations/{conversation_id}",
        "/v1/conversations/{conversation_id}/items",
        "/v1/conversations/{conversation_id}/items/{item_id}",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/models/{model_id:path}",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/{response_id}",
        "/v1/responses/{response_id}/cancel",
        "/v1/responses/{response_id}/input_items",
    }
)
"""Route templates that may exist at user level; a route that is in none of the three sets fails a test."""

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1", "testserver"})


def level_of(path: str) -> Level:
    if path in PUBLIC_PATHS:
        return "public"
    return "admin" if path in ADMIN_PATHS else "user"


def meant_route(path: str) -> str:
    """The route that a client with a wrong base URL means (``/chat/completions``, ``/v1/v1/models``, a slash at the
    end), "" where none comes near."""
    words = [word for word in path.split("/") if word][-4:]
    tails = ["/".join(words[start:]) for start in range(len(words))]
    candidates = [f"{prefix}{tail}" for tail in tails for prefix in ("/", "/v1/")]
    return next((route for route in candidates if route in USER_ROUTES), "")


class KeyRing:
    """The configured keys of one level, as digests."""

    def __init__(self, keys: Iterable[Secret]) -> None:
        self._digests = tuple(hashlib.sha256(key.reveal().encode()).digest() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def match(self, candidate: bytes) -> bytes | None:
        """The digest of the key that ``candidate`` is, None for no key; the time does not depend on which."""
        digest = hashlib.sha256(candidate).digest()
        found = None
        for known in self._digests:
            if hmac.compare_digest(known, digest):
                found = known
        return found


class Tenants:
    """Names of cache namespaces, meaningless without this process's secret."""

    def __init__(self, secret: bytes = b"") -> None:
        self._secret = secret or os.urandom(32)

    def name(self, digest: bytes | None, salt: str = "") -> str:
        """The namespace of a key (None: nobody is authenticated) and of a client's own ``cache_salt`` within it."""
        if digest is None and not salt:
            return ""
        parts = (digest or b"", salt.encode())
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()[:32]


def presented_key(scope: Scope) -> bytes | None:
    """The one key that the request carries; None where it carries none, several, or a malformed header."""
    found = []
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, token = value.partition(b" ")
            found.append(token.strip() if scheme.lower() == b"bearer" else b"")
        elif name in (b"x-api-key", b"api-key"):
            found.append(value.strip())
    keys = set(found)
    return keys.pop() if len(keys) == 1 and b"" not in keys else None


def host_name(scope: Scope) -> str:
    """The Host header without its port, "" where it is missing."""
    text = Headers(scope=scope).get("host", "")
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text


def is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address in ("", "testclient")


_ENDING = ("/abort_request", "/cancel")
"""Requests that end another: they count against no limit, or a key that has reached it could not."""


class AuthMiddleware:
    """Pure ASGI. Raises Unauthorized, Forbidden or RateLimited before the application sees the request."""

    def __init__(self, app: ASGIApp, *, args: ServerArgs, limiter: RateLimiter, tenants: Tenants) -> None:
        self.app = app
        self._args = args
        self._users = KeyRing(args.api_keys)
        self._admins = KeyRing(args.admin_keys)
        self._limiter = limiter
        self._tenants = tenants

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        level = level_of(scope["path"]) if scope["type"] == "http" else "public"
        if level == "public":
            await self.app(scope, receive, send)
            return
        digest = self._authorise(scope, level)
        context = context_of(scope)
        context.key_digest = digest
        context.tenant = self._tenants.name(digest)
        if digest is None or scope["method"] != "POST" or scope["path"].endswith(_ENDING):
            await self.app(scope, receive, send)
            return
        with self._limiter.admit(digest):
            await self.app(scope, receive, send)

    def _authorise(self, scope: Scope, level: Level) -> bytes | None:
        self._check_host(scope, level)
        if not self._users and not self._admins:
            if level == "admin":
                self._check_loopback(scope)
            return None
        key = presented_key(scope)
        admin = self._admins.match(key) if key is not None else None
        user = self._users.match(key) if key is not None else None
        if admin is not None:
            return admin
        if user is None and (self._users or level == "admin"):
            raise Unauthorized("Incorrect API key provided, or none. Send it as 'Authorization: Bearer KEY'.")
        if level == "admin":
            raise Forbidden("This route needs an admin key.")
        return user

    def _check_host(self, scope: Scope, level: Level) -> None:
        allowed = self._args.allowed_hosts
        if allowed and host_name(scope) not in allowed:
            raise Forbidden("This Host is not allowed.")

    def _check_loopback(self, scope: Scope) -> None:
        client = scope.get("client")
        hosts = _LOOPBACK_NAMES.union(self._args.allowed_hosts)
        origin = Headers(scope=scope).get("origin")
        if client is not None and not is_loopback(client[0]):
            raise Forbidden("Without an admin key this route answers only to the same machine.")
        if host_name(scope) not in hosts or (origin and origin not in self._args.allowed_origins):
            raise Forbidden("This Host or Origin may not call admin routes.")
