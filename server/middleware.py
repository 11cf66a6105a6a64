"""The outermost layer: request ids, header checks, errors to JSON, metrics and the access log. Pure ASGI.

One line of JSON per request goes to the logger ``callgate.access``. Client strings in it are cut to 200
characters and escaped to ASCII, so no request can forge a line or colour a terminal. Keys are
never logged, prompts only where the operator asks for it (server/logs.py).
"""

from __future__ import annotations

import json
import logging
import re
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server import limits
from server.anthropic.errors import is_anthropic
from server.context import RequestContext, context_of
from server.error_bodies import error_body
from server.errors import ApiError, BadRequest, ClientDisconnected, Exhausted, HeadersTooLarge, translate
from server.logs import ACCESS_LOG
from server.metrics import Metrics

ACCESS = logging.getLogger(ACCESS_LOG)
LOG = logging.getLogger("callgate.server")

_HOST = re.compile(rb"[A-Za-z0-9._~:\[\]-]{1,255}")
_CLIENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


async def send_error(error: ApiError, body: bytes, send: Send, extra: tuple[tuple[bytes, bytes], ...]) -> None:
    headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in error.headers.items()]
    headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *extra]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def check_head(scope: Scope) -> None:
    """Refuse what no honest client sends: too many headers, a bad Host, control characters in the path."""
    headers = scope["headers"]
    if len(headers) > limits.MAX_HEADERS:
        raise HeadersTooLarge(f"More than {limits.MAX_HEADERS} headers.")
    if sum(len(name) + len(value) for name, value in headers) > limits.MAX_HEADER_BYTES:
        raise HeadersTooLarge(f"The headers are larger than {limits.MAX_HEADER_BYTES} bytes.")
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1 or (not hosts and scope.get("http_version") == "1.1"):
        raise BadRequest("The request needs exactly one Host header.")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise BadRequest("The Host header is not valid.")
    if any(name == b"transfer-encoding" and value.strip().lower() != b"chunked" for name, value in headers):
        raise BadRequest("The only transfer coding is chunked.")
    if not scope["path"].isprintable():
        raise BadRequest("The URL holds control characters.")


class EdgeMiddleware:
    """Wraps everything. An exception that reaches it becomes an error object, or, once the response has started,
    a closed connection."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await _Exchange(self.app, scope, send, self._metrics).run(receive)
        else:
            await send({"type": "websocket.close", "code": 1008})


class _Exchange:
    """One request and its response. HEAD is GET without the body."""

    def __init__(self, app: ASGIApp, scope: Scope, send: Send, metrics: Metrics) -> None:
        self._app = app
        self._scope = scope
        self._send = send
        self._metrics = metrics
        self._context = context_of(scope)
        self._head = scope["method"] == "HEAD"
        self._routed: Scope = {**scope, "method": "GET"} if self._head else scope
        self._status = 0
        self._extra = self._id_headers()

    def _id_headers(self) -> tuple[tuple[bytes, bytes], ...]:
        found = [(b"x-request-id", self._context.request_id.encode())]
        if is_anthropic(self._scope):
            found.append((b"request-id", self._context.request_id.encode()))
        for name, value in self._scope["headers"]:
            if name == b"x-client-request-id" and _CLIENT_ID.fullmatch(value):
                found.append((name, value))
        return tuple(found)

    async def run(self, receive: Receive) -> None:
        with self._metrics.in_flight():
            try:
                check_head(self._scope)
                await self._app(self._routed, receive, self._start)
            except ClientDisconnected:
                self._status = 499
            except Exception as exc:
                begun = self._status != 0
                await self._fail(exc)
                if begun:
                    raise
            finally:
                self._record()

    async def _start(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [*message.get("headers", ()), *self._extra]
        elif self._head:
            message = {**message, "body": b""}
        await self._send(message)

    async def _fail(self, exc: Exception) -> None:
        error = as_error(exc, self._context.request_id)
        if self._status:
            return
        self._status = error.status
        body = error_body(error, self._scope, self._context.request_id)
        await send_error(error, body, self._send, self._extra)

    def _record(self) -> None:
        route = getattr(self._routed.get("route"), "path", "other")
        seconds = time.monotonic() - self._context.started
        self._metrics.request_done(route, self._status, seconds)
        if ACCESS.isEnabledFor(logging.INFO):
            ACCESS.info(access_line(self._scope, self._context, self._status, seconds))


def as_error(exc: Exception, request_id: str) -> ApiError:
    """What a client is told of an exception; one that is our fault goes into the log with its traceback."""
    error = translate(exc, request_id)
    if error.status == 500:
        LOG.error("request %s failed", request_id, exc_info=exc)
    elif isinstance(error, Exhausted):
        LOG.error("request %s refused: %s", request_id, repr(exc)[:200])
    return error


def access_line(scope: Scope, context: RequestContext, status: int, seconds: float) -> str:
    """One line of ASCII JSON."""
    client = scope.get("client")
    record = {
        "time": time.time(),
        "request_id": context.request_id,
        "client": client[0] if client else "",
        "method": scope["method"] if scope["method"] in _METHODS else "other",
        "path": scope["path"][:200],
        "status": status,
        "ms": round(seconds * 1000, 2),
    }
    if context.prompt_tokens or context.completion_tokens:
        record |= {"prompt_tokens": context.prompt_tokens, "completion_tokens": context.completion_tokens}
    return json.dumps(record, ensure_ascii=True).replace("\x7f", "\\u007f")
