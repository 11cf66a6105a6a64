"""POST /api/embed and the older /api/embeddings: the vectors of server/openai/embeddings.py in Ollama's words."""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from server import limits
from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.json_response import json_response
from server.ollama.types import EmbedRequest, OldEmbedRequest
from server.openai.embeddings import EmbeddingsHandler, shortened
from server.prompts import parse_prompts
from server.services import Services


class EmbedHandler:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._handler = EmbeddingsHandler(services)

    async def many(self, request: Request) -> Response:
        asked = convert(await self._services.read_json(request.scope, request.receive), EmbedRequest)
        start = time.monotonic_ns()
        vectors, tokens = await self._vectors(request, asked.model, asked.input)
        width = self._handler.dimensions(asked.dimensions)
        return json_response(
            {
                "model": asked.model,
                "embeddings": [shortened(vector, width) for vector in vectors],
                "total_duration": time.monotonic_ns() - start,
                "load_duration": 0,
                "prompt_eval_count": tokens,
            }
        )

    async def one(self, request: Request) -> Response:
        asked = convert(await self._services.read_json(request.scope, request.receive), OldEmbedRequest)
        vectors, _ = await self._vectors(request, asked.model, asked.prompt)
        return json_response({"embedding": list(vectors[0])})

    async def _vectors(
        self, request: Request, model: str, texts: str | list[str]
    ) -> tuple[Sequence[Sequence[float]], int]:
        services, context = self._services, context_of(request.scope)
        services.require_ready()
        services.model(model)
        self._handler.dimensions(None)
        prompts = parse_prompts(texts, "input", services.engine.model_info, limits.MAX_EMBEDDING_INPUTS)
        work = self._handler.embed(prompts, services.tenant(context, None), context)
        return await unless_disconnected(request.receive, work)
