"""llama.cpp's own routes: completion of raw text, filling in, and what its clients ask about the server."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.cli import version
from server.errors import Unavailable
from server.json_response import json_response
from server.llama_cpp.fields import DEFAULTS
from server.llama_cpp.handler import LlamaCppHandler
from server.llama_cpp.types import CompletionRequest, InfillRequest, PropsBody, TemplateBody
from server.openai.chat import ChatHandler
from server.openai.types.chat import ChatCompletionRequest
from server.openapi import AnyBody, openapi_answer, openapi_body
from server.services import Services

_LIST = {"description": "Answer", "content": {"application/json": {"schema": {"type": "array"}}}}
_SLOTS = openapi_answer(AnyBody, ("fail_on_no_slot", {"type": "string"})) | {"responses": {"200": _LIST}}


def llama_cpp_router(services: Services) -> APIRouter:
    router = APIRouter(tags=["llama.cpp"])
    handler, chat = LlamaCppHandler(services), ChatHandler(services)

    async def apply_template(request: Request) -> Response:
        body = await services.read_json(request.scope, request.receive)
        _, conversation = chat.read(body, request)
        prompt = await services.planner.render(conversation)
        return json_response({"prompt": prompt.plain})

    async def get_props() -> Response:
        return json_response(props(services))

    async def get_slots(request: Request) -> Response:
        found = await slots(services)
        if request.query_params.get("fail_on_no_slot", "0") not in ("", "0", "false") and all(
            slot["is_processing"] for slot in found
        ):
            raise Unavailable("No slot is available.")
        return json_response(found)

    complete, fill = (
        openapi_body(CompletionRequest, AnyBody, streams=True),
        openapi_body(InfillRequest, AnyBody, streams=True),
    )
    template = openapi_body(ChatCompletionRequest, TemplateBody)
    router.post("/completion", summary="Completion, in llama.cpp's words", openapi_extra=complete)(handler.completion)
    router.post("/infill", summary="Text between two texts", openapi_extra=fill)(handler.infill)
    router.post("/apply-template", summary="Messages as a prompt", openapi_extra=template)(apply_template)
    router.get("/props", summary="What is served, in llama.cpp's words", openapi_extra=openapi_answer(PropsBody))(
        get_props
    )
    router.get("/slots", summary="Rows of the batch, in llama.cpp's words", openapi_extra=_SLOTS)(get_slots)
    return router


async def slots(services: Services) -> list[dict[str, Any]]:
    """GET /slots: how many rows are in use. Whose they are, and what they hold, is nobody's business."""
    services.require_ready()
    info, running = services.engine.model_info, (await services.engine.stats()).running
    return [
        {"id": number, "n_ctx": info.context_length, "speculative": False, "is_processing": number < running}
        for number in range(info.max_running_requests)
    ]


def props(services: Services) -> dict[str, Any]:
    """GET /props. The model's path is its file's name alone."""
    services.require_ready()
    info, tokenizer = services.engine.model_info, services.engine.tokenizer
    return {
        "default_generation_settings": {"n_ctx": info.context_length, "params": {**DEFAULTS, "n_predict": -1}},
        "total_slots": info.max_running_requests,
        "model_alias": services.model_names[0],
        "model_path": PurePath(info.model_path).name,
        "chat_template": services.planner.dialect.template,
        "bos_token": tokenizer.bos_token or "",
        "eos_token": tokenizer.eos_token or "",
        "modalities": {"vision": False, "audio": False},
        "build_info": f"callgate {version()}",
    }
