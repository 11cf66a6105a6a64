"""LM Studio's listing of models, by which its clients (Zed, Cline) learn how long a context is and that tools can be
called. Its paths for generating are OpenAI's below another prefix (server/other_paths.py)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.json_response import json_response
from server.services import Services


def lm_studio_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/api/v0", tags=["lm studio"])

    @router.get("/models", summary="List models, in LM Studio's words")
    async def models() -> Response:
        found = [_model(services, name) for name in services.model_names]
        return json_response({"object": "list", "data": found})

    @router.get("/models/{model_id:path}", summary="Retrieve a model, in LM Studio's words")
    async def model(request: Request) -> Response:
        return json_response(_model(services, services.model(request.path_params["model_id"])))

    return router


def _model(services: Services, name: str) -> dict[str, Any]:
    info = services.engine.model_info
    return {
        "id": name,
        "object": "model",
        "type": "llm",
        "publisher": "callgate",
        "arch": info.architecture,
        "compatibility_type": "gguf",  # Zed reads no list that holds another word here than this one or mlx
        "quantization": info.quantization or info.dtype,
        "state": "loaded",
        "max_context_length": info.context_length,
        "loaded_context_length": info.context_length,
        "capabilities": ["tool_use"],
    }
