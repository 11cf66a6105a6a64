"""build_app: the gateway as an ASGI application around any EngineClient. No globals, no I/O at import."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from engine.client import EngineClient
from server.anthropic.routes import anthropic_router
from server.args import ServerArgs
from server.auth import AuthMiddleware, Tenants, meant_route
from server.constrainer import Constrainer
from server.context import context_of
from server.cors import GatewayCors
from server.error_bodies import error_body
from server.errors import BadRequest, from_http_exception
from server.health import health_router
from server.llama_cpp.routes import llama_cpp_router
from server.lm_studio import lm_studio_router
from server.metrics import CONTENT_TYPE, Metrics
from server.middleware import EdgeMiddleware
from server.native.routes import native_router
from server.ollama.routes import ollama_router
from server.openai.responses.routes import responses_router
from server.openai.routes import openai_router
from server.openapi import GatewayApp
from server.other_paths import OtherPaths
from server.planner import Planner
from server.playground.routes import playground_router
from server.rate_limit import RateLimiter
from server.running_requests import RunningRequests
from server.services import Services


def build_app(engine: EngineClient, args: ServerArgs, *, constrainer: Constrainer | None = None) -> FastAPI:
    """The whole HTTP surface. The engine may still be starting; until it is ready, requests get 503."""
    services = build_services(engine, args, constrainer or Constrainer())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warm_up = asyncio.create_task(services.planner.warm_up())
        yield
        warm_up.cancel()
        await asyncio.gather(warm_up, return_exceptions=True)
        await services.planner.close()

    app = GatewayApp(
        lifespan=lifespan,
        title="Callgate",
        summary="OpenAI-compatible gateway with function calling",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        root_path=args.root_path,
    )
    app.state.services = services
    app.include_router(health_router(engine))
    app.include_router(openai_router(services))
    app.include_router(native_router(services))
    app.include_router(responses_router(services))
    app.include_router(anthropic_router(services))
    app.include_router(ollama_router(services))
    app.include_router(llama_cpp_router(services))
    app.include_router(lm_studio_router(services))
    app.include_router(playground_router())
    _add_metrics(app, services)
    _add_error_handlers(app)
    _add_middleware(app, services)
    return app


def build_services(engine: EngineClient, args: ServerArgs, constrainer: Constrainer) -> Services:
    limiter = RateLimiter(
        requests_per_minute=args.requests_per_minute,
        tokens_per_minute=args.tokens_per_minute,
        max_concurrent=args.max_concurrent_requests,
    )
    return Services(engine, args, Metrics(), limiter, Tenants(), Planner(engine, args, constrainer), RunningRequests())


def _add_metrics(app: FastAPI, services: Services) -> None:
    text = {"200": {"description": "Exposition text", "content": {"text/plain": {"schema": {"type": "string"}}}}}

    @app.get(
        "/metrics",
        summary="Prometheus metrics",
        tags=["health"],
        response_class=PlainTextResponse,
        openapi_extra={"responses": text},
    )
    async def metrics() -> Response:
        return Response(await services.metrics.render(services.engine), headers={"content-type": CONTENT_TYPE})


def _add_error_handlers(app: FastAPI) -> None:
    """The router's own refusals; everything else reaches EdgeMiddleware as an exception."""

    async def on_http_exception(request: Request, exc: Exception) -> Response:
        assert isinstance(exc, HTTPException)
        error = from_http_exception(exc.status_code, exc.headers, meant_route(request.scope["path"]))
        body = error_body(error, request.scope, context_of(request.scope).request_id)
        return Response(body, error.status, headers=error.headers, media_type="application/json")

    async def on_validation_error(request: Request, exc: Exception) -> Response:
        error = BadRequest("A query or path parameter is not valid.")
        return Response(error.json(), error.status, media_type="application/json")

    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_validation_error)


def _add_middleware(app: FastAPI, services: Services) -> None:
    """Last added is outermost: edge (ids, errors, log), CORS, keys, other servers' paths, then the routes."""
    args = services.args
    app.add_middleware(OtherPaths)
    app.add_middleware(AuthMiddleware, args=args, limiter=services.limiter, tenants=services.tenants)
    if args.allowed_origins:
        app.add_middleware(GatewayCors, origins=args.allowed_origins)
    app.add_middleware(EdgeMiddleware, metrics=services.metrics)
