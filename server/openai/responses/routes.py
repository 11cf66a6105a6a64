"""The routes of the Responses API, and the store behind them."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from server.openai.responses.handler import ResponsesHandler, StoredResponses
from server.openai.responses.store import ResponseStore
from server.openai.types.responses import (
    DeletedResponseBody,
    InputItemsBody,
    InputTokensBody,
    ResponseBody,
    ResponsesRequest,
)
from server.openapi import openapi_answer, openapi_body
from server.services import Services


def responses_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1/responses", tags=["openai"])
    args = services.args
    store = ResponseStore(args.response_store_bytes, args.response_store_seconds)
    handler, stored = ResponsesHandler(services, store), StoredResponses(store)

    @router.post("", summary="Response", openapi_extra=openapi_body(ResponsesRequest, ResponseBody, streams=True))
    async def create(request: Request) -> Response:
        return await handler(request)

    @router.post(
        "/input_tokens", summary="Count input tokens", openapi_extra=openapi_body(ResponsesRequest, InputTokensBody)
    )
    async def input_tokens(request: Request) -> Response:
        return await handler.count_tokens(request)

    @router.get("/{response_id}", summary="Retrieve a stored response", openapi_extra=openapi_answer(ResponseBody))
    async def retrieve(request: Request) -> Response:
        return stored.retrieve(request)

    @router.delete(
        "/{response_id}", summary="Delete a stored response", openapi_extra=openapi_answer(DeletedResponseBody)
    )
    async def delete(request: Request) -> Response:
        return stored.delete(request)

    @router.post("/{response_id}/cancel", summary="Cancel a response", openapi_extra=openapi_answer(ResponseBody))
    async def cancel(request: Request) -> Response:
        return stored.cancel(request)

    @router.get(
        "/{response_id}/input_items",
        summary="List the input of a stored response",
        openapi_extra=openapi_answer(
            InputItemsBody,
            ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
            ("order", {"type": "string", "enum": ["asc", "desc"]}),
            ("after", {"type": "string"}),
        ),
    )
    async def input_items(request: Request) -> Response:
        return stored.input_items(request)

    return router
