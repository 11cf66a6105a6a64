"""The routes of Ollama's API that ask a served model something; none changes which models there are."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.body import convert
from server.errors import BadRequest
from server.json_response import json_response
from server.ollama.embed import EmbedHandler
from server.ollama.handler import OllamaHandler
from server.ollama.models import API_VERSION, list_models, running_models, show_model
from server.ollama.types import (
    ChatBody,
    ChatRequest,
    EmbedBody,
    EmbedRequest,
    GenerateBody,
    GenerateRequest,
    ModelsBody,
    OldEmbedBody,
    OldEmbedRequest,
    ShowBody,
    ShowRequest,
    VersionBody,
)
from server.openapi import openapi_answer, openapi_body
from server.services import Services

_ERROR: dict[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_LINES = "application/x-ndjson"


def ollama_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["ollama"])
    handler, embed = OllamaHandler(services), EmbedHandler(services)

    async def show(request: Request) -> Response:
        asked = convert(await services.read_json(request.scope, request.receive), ShowRequest)
        name = asked.model or asked.name
        if not name:
            raise BadRequest("Missing required parameter: 'model'.", param="model", code="missing_required_parameter")
        return json_response(show_model(services, name))

    async def tags() -> Response:
        return json_response(list_models(services))

    async def running() -> Response:
        return json_response(running_models(services))

    async def version() -> Response:
        return json_response({"version": API_VERSION})

    chat, generate = _body(ChatRequest, ChatBody, _LINES), _body(GenerateRequest, GenerateBody, _LINES)
    router.post("/chat", summary="Chat, in Ollama's words", openapi_extra=chat)(handler.chat)
    router.post("/generate", summary="Completion, in Ollama's words", openapi_extra=generate)(handler.generate)
    router.post("/embed", summary="Embeddings", openapi_extra=_body(EmbedRequest, EmbedBody))(embed.many)
    router.post("/embeddings", summary="One embedding", openapi_extra=_body(OldEmbedRequest, OldEmbedBody))(embed.one)
    router.post("/show", summary="What a model can do", openapi_extra=_body(ShowRequest, ShowBody))(show)
    router.get("/tags", summary="List models", openapi_extra=_answer(ModelsBody))(tags)
    router.get("/ps", summary="List loaded models", openapi_extra=_answer(ModelsBody))(running)
    router.get("/version", summary="The API's version", openapi_extra=_answer(VersionBody))(version)
    return router


def _body(request: type, answer: type, streams: str = "") -> dict[str, Any]:
    return openapi_body(request, answer, streams=streams, error=_ERROR)


def _answer(answer: type) -> dict[str, Any]:
    extra = openapi_answer(answer)
    error = {"description": "Error", "content": {"application/json": {"schema": _ERROR}}}
    return {**extra, "responses": {**extra["responses"], "4XX": error, "503": error}}
