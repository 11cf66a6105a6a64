"""The routes of the Responses API, and the store behind them."""

from __future__ import annotations

from fastapi import APIRouter

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

    answer = openapi_body(ResponsesRequest, ResponseBody, streams=True)
    count = openapi_body(ResponsesRequest, InputTokensBody)
    response, deleted = openapi_answer(ResponseBody), openapi_answer(DeletedResponseBody)
    items = openapi_answer(
        InputItemsBody,
        ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
        ("order", {"type": "string", "enum": ["asc", "desc"]}),
        ("after", {"type": "string"}),
    )
    one = "/{response_id}"
    router.post("", summary="Response", openapi_extra=answer)(handler.answer)
    router.post("/input_tokens", summary="Count input tokens", openapi_extra=count)(handler.count_tokens)
    router.get(one, summary="Retrieve a stored response", openapi_extra=response)(stored.retrieve)
    router.delete(one, summary="Delete a stored response", openapi_extra=deleted)(stored.delete)
    router.post(f"{one}/cancel", summary="Cancel a response", openapi_extra=response)(stored.cancel)
    router.get(f"{one}/input_items", summary="List the input of a stored response", openapi_extra=items)(
        stored.input_items
    )
    return router
