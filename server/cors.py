"""Cross-origin answers for browser clients: refusals carry the same headers as answers.

Without them a browser hides an error's status and text, and SDKs take it for a broken connection that is worth a retry.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.context import context_of
from server.error_bodies import error_body
from server.errors import BadRequest, ClientDisconnected
from server.middleware import as_error, send_error


class GatewayCors(CORSMiddleware):
    """Starlette's, around an application whose exceptions become error objects here, before the headers are added."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(
            _Errors(app),
            allow_origins=list(origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "request-id", "x-client-request-id", "retry-after"],
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code < 400:
            return response
        headers = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
        error = BadRequest(f"{bytes(response.body).decode()}.")
        return Response(error.json(), error.status, headers=headers, media_type="application/json")


class _Errors:
    """Sends what EdgeMiddleware would send. Once the response has started, the exception goes on to it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except ClientDisconnected:
            raise
        except Exception as exc:
            if started or scope["type"] != "http":
                raise
            request_id = context_of(scope).request_id
            error = as_error(exc, request_id)
            await send_error(error, error_body(error, scope, request_id), send, ())
