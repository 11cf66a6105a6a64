"""The OpenAI routes."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.anthropic import models as anthropic_models
from server.anthropic.errors import is_anthropic
from server.json_response import json_response
from server.openai.chat import ChatHandler
from server.openai.completions import CompletionsHandler
from server.openai.embeddings import EmbeddingsHandler
from server.openai.models import list_models, retrieve_model
from server.openai.types.chat import ChatCompletionBody, ChatCompletionRequest
from server.openai.types.completions import CompletionBody, CompletionRequest
from server.openai.types.embeddings import EmbeddingBody, EmbeddingRequest
from server.openapi import AnyBody, openapi_body
from server.services import Services


def openai_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])
    chat, completions, embeddings = ChatHandler(services), CompletionsHandler(services), EmbeddingsHandler(services)
    answer = openapi_body(ChatCompletionRequest, ChatCompletionBody, streams=True)
    prompt = openapi_body(ChatCompletionRequest, AnyBody)
    text = openapi_body(CompletionRequest, CompletionBody, streams=True)
    vectors = openapi_body(EmbeddingRequest, EmbeddingBody)
    post = router.post
    post("/chat/completions", summary="Chat completion", openapi_extra=answer)(chat.answer)
    post("/chat/completions/render", summary="A chat request's prompt", openapi_extra=prompt)(chat.render)
    post("/chat/completions/input_tokens", summary="Count a chat request's prompt tokens", openapi_extra=prompt)(
        chat.count_tokens
    )
    post("/completions", summary="Completion of raw text", openapi_extra=text)(completions.answer)
    post("/embeddings", summary="Embeddings", openapi_extra=vectors)(embeddings.answer)
    _add_models(router, services)
    return router


def _add_models(router: APIRouter, services: Services) -> None:
    @router.get("/models", summary="List models")
    async def models(request: Request) -> Response:
        if is_anthropic(request.scope):
            return json_response(anthropic_models.list_models(services))
        return json_response(list_models(services))

    @router.get("/models/{model_id:path}", summary="Retrieve a model")
    async def model(request: Request) -> Response:
        name = request.path_params["model_id"]
        if is_anthropic(request.scope):
            return json_response(anthropic_models.model_info(services, services.model(name)))
        return json_response(retrieve_model(services, name))
