"""The routes of Anthropic's Messages API."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.anthropic.handler import MessagesHandler
from server.anthropic.types import CountTokensRequest, MessageBody, MessagesRequest, TokenCountBody
from server.openapi import ERROR_SCHEMA, openapi_body
from server.services import Services

ANTHROPIC_ERROR_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": ERROR_SCHEMA["properties"]["error"],
        "request_id": {"type": ["string", "null"]},
    },
}


def anthropic_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1/messages", tags=["anthropic"])
    handler = MessagesHandler(services)

    answer = openapi_body(MessagesRequest, MessageBody, streams=True, error=ANTHROPIC_ERROR_SCHEMA)
    count = openapi_body(CountTokensRequest, TokenCountBody, error=ANTHROPIC_ERROR_SCHEMA)
    router.post("", summary="Message", openapi_extra=answer)(handler.answer)
    router.post("/count_tokens", summary="Count message tokens", openapi_extra=count)(handler.count_tokens)
    return router
