"""POST /v1/embeddings: the served model's mean-pooled, L2-normalised last hidden state.

``dimensions`` below the model's width keeps the first ones and normalises again; what quality is left is the model's
matter. Inputs are texts of third parties, so no spelling in them is a special token.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from chat_templates.guard import Guard, pick_unused
from server import limits
from server.body import convert
from server.context import RequestContext, context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest, invalid
from server.fields import refuse
from server.json_response import json_response, off_loop
from server.openai.fields import EMBEDDINGS_REFUSED
from server.openai.sampling import check_cache_salt, check_user
from server.openai.types.embeddings import EmbeddingRequest
from server.prompts import INLINE_CHARS, Prompt, parse_prompts, too_long
from server.services import Services

_INPUTS_AT_ONCE = 64
"""Inputs of one HTTP request that are in the engine's queue together."""


class EmbeddingsHandler:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        services, context = self._services, context_of(request.scope)
        body = await services.read_json(request.scope, request.receive)
        refuse(body, EMBEDDINGS_REFUSED)
        wanted = convert(body, EmbeddingRequest)
        services.require_ready()
        model = services.model(wanted.model)
        check_user(wanted.user)
        check_cache_salt(wanted.cache_salt)
        width = self.dimensions(wanted.dimensions)
        prompts = parse_prompts(wanted.input, "input", services.engine.model_info, limits.MAX_EMBEDDING_INPUTS)
        work = self.embed(prompts, services.tenant(context, wanted.cache_salt), context)
        vectors, tokens = await unless_disconnected(request.receive, work)
        as_base64 = wanted.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _written(vector, width, as_base64)}
            for index, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_response({"object": "list", "data": data, "model": model, "usage": usage})

    def dimensions(self, wanted: int | None) -> int:
        """How many numbers a vector gets. Raises BadRequest."""
        size = self._services.engine.model_info.embedding_size
        if not size:
            raise BadRequest("The served model has no embeddings.", param="model")
        if wanted is not None and not 1 <= wanted <= size:
            raise BadRequest(f"dimensions must lie between 1 and {size}.", param="dimensions")
        return wanted or size

    async def embed(
        self, prompts: Sequence[Prompt], tenant: str, context: RequestContext
    ) -> tuple[list[Sequence[float]], int]:
        """The vectors, and how many tokens went in."""
        services = self._services
        large = sum(len(prompt.text or "") for prompt in prompts) > INLINE_CHARS
        batch = await off_loop(large, lambda: [self._ids(prompt, place) for place, prompt in enumerate(prompts)])
        tokens = context.prompt_tokens = sum(map(len, batch))
        vectors: list[Sequence[float]] = []
        with services.engine.together() as engine:
            for start in range(0, len(batch), _INPUTS_AT_ONCE):
                vectors += await engine.embed(batch[start : start + _INPUTS_AT_ONCE], tenant)
        services.limiter.charge(context.key_digest, tokens)
        services.metrics.prompt_tokens.inc(tokens)
        return vectors, tokens

    def _ids(self, prompt: Prompt, place: int) -> Sequence[int]:
        services, param = self._services, f"input[{place}]"
        ids: Sequence[int] = prompt.ids or ()
        if prompt.text is not None:
            guard = Guard(pick_unused([prompt.text]), services.engine.tokenizer.special_tokens)
            text = guard.apply(prompt.text)
            ids = services.engine.tokenizer.encode(text, guard=guard.char, add_special_tokens=True)
        if not ids or prompt.text == "":
            raise invalid(param, "it is empty")
        if len(ids) >= services.engine.model_info.context_length:
            raise too_long(services.engine.model_info, f"your prompt has {len(ids)} tokens", param)
        return ids


def _written(vector: Sequence[float], width: int, as_base64: bool) -> Any:
    """Float32, little-endian, in base64."""
    values = shortened(vector, width)
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode() if as_base64 else values


def shortened(vector: Sequence[float], width: int) -> list[float]:
    """The first ``width`` dimensions, normalised again where some were cut."""
    values = list(vector[:width])
    if width < len(vector):
        norm = math.sqrt(sum(value * value for value in values)) or 1.0
        values = [value / norm for value in values]
    return values
