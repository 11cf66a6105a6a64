"""The native routes: what SGLang and vLLM serve beside OpenAI's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server import limits
from server.body import convert
from server.cli import version
from server.context import context_of
from server.errors import BadRequest, Unsupported
from server.json_response import json_response, off_loop
from server.native.generate import GenerateHandler
from server.native.info import model_info, server_info
from server.native.parsing import parse_function_call, separate_reasoning
from server.native.tokens import detokenize, tokenize
from server.native.types import (
    AbortRequest,
    DetokenizeRequest,
    GenerateRequest,
    ParseFunctionCallRequest,
    SeparateReasoningRequest,
    TokenizeRequest,
)
from server.openapi import AnyBody, openapi_body
from server.services import Services

_INLINE_CHARS = 16 * 1024
"""Texts up to this size are read by the parsers on the event loop, larger ones in a thread."""


def native_router(services: Services) -> APIRouter:
    router = APIRouter(tags=["native"])
    _add_generation(router, services)
    _add_parsers(router, services)
    _add_information(router, services)
    return router


def _add_generation(router: APIRouter, services: Services) -> None:
    generation = openapi_body(GenerateRequest, AnyBody, streams=True)
    router.post("/generate", summary="Native generation", openapi_extra=generation)(GenerateHandler(services).answer)

    @router.post("/tokenize", summary="Text to token ids", openapi_extra=openapi_body(TokenizeRequest, AnyBody))
    async def text_to_ids(request: Request) -> Response:
        return await tokenize(services, request)

    @router.post("/detokenize", summary="Token ids to text", openapi_extra=openapi_body(DetokenizeRequest, AnyBody))
    async def ids_to_text(request: Request) -> Response:
        return await detokenize(services, request)

    @router.post(
        "/abort_request", summary="Abort a request by its id", openapi_extra=openapi_body(AbortRequest, AnyBody)
    )
    async def abort_request(request: Request) -> Response:
        wanted = convert(await services.read_json(request.scope, request.receive), AbortRequest)
        if wanted.abort_all:
            raise Unsupported("abort_all", "abort_all is not supported: name one request.")
        if not 0 < len(wanted.rid) <= limits.MAX_RID:
            raise BadRequest(f"rid must have 1 to {limits.MAX_RID} characters.", param="rid")
        return json_response({"aborted": services.running.abort(context_of(request.scope).tenant, wanted.rid)})


def _add_parsers(router: APIRouter, services: Services) -> None:
    async def answer(request: Request, parse: Callable[[Services, dict[str, Any]], dict[str, Any]]) -> Response:
        body = await services.read_json(request.scope, request.receive)
        services.require_ready()
        return json_response(await off_loop(len(str(body.get("text"))) > _INLINE_CHARS, parse, services, body))

    @router.post(
        "/parse_function_call",
        summary="Read tool calls from a text",
        openapi_extra=openapi_body(ParseFunctionCallRequest, AnyBody),
    )
    async def function_calls(request: Request) -> Response:
        return await answer(request, parse_function_call)

    @router.post(
        "/separate_reasoning",
        summary="Split a text into reasoning and answer",
        openapi_extra=openapi_body(SeparateReasoningRequest, AnyBody),
    )
    async def reasoning(request: Request) -> Response:
        return await answer(request, separate_reasoning)


def _add_information(router: APIRouter, services: Services) -> None:
    @router.get("/get_model_info", summary="The served model")
    async def get_model_info() -> Response:
        return json_response(model_info(services))

    @router.get("/get_server_info", summary="The server's settings and counters")
    @router.get("/server_info", summary="The server's settings and counters")
    async def get_server_info() -> Response:
        services.require_ready()
        return json_response(await server_info(services))

    @router.get("/version", summary="The server's version")
    async def get_version() -> Response:
        return json_response({"version": version()})

    @router.get("/flush_cache", summary="Empty the prefix cache")
    @router.post("/flush_cache", summary="Empty the prefix cache")
    async def flush_cache() -> Response:
        done = await services.engine.flush_cache()
        message = "The prefix cache is empty." if done else "Running requests keep parts of the prefix cache."
        return json_response({"success": done, "message": message})
