"""The routes of the Responses API and of conversations, and the store behind them."""

from __future__ import annotations

from fastapi import APIRouter

from server.openai.responses.background import Background
from server.openai.responses.conversations import ConversationsHandler
from server.openai.responses.handler import ResponsesHandler
from server.openai.responses.store import ResponseStore
from server.openai.responses.stored import StoredResponses
from server.openai.types.conversations import (
    ConversationBody,
    ConversationItemBody,
    ConversationItemsRequest,
    ConversationRequest,
    ConversationUpdate,
)
from server.openai.types.responses import (
    DeletedResponseBody,
    InputItemsBody,
    InputTokensBody,
    ResponseBody,
    ResponsesRequest,
)
from server.openapi import openapi_answer, openapi_body
from server.services import Services

_ITEMS = openapi_answer(
    InputItemsBody,
    ("limit", {"type": "integer", "minimum": 1, "maximum": 100}),
    ("order", {"type": "string", "enum": ["asc", "desc"]}),
    ("after", {"type": "string"}),
)


def responses_router(services: Services) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["openai"])
    args = services.args
    store = ResponseStore(args.response_store_bytes, args.response_store_seconds)
    _add_responses(router, services, store)
    _add_conversations(router, ConversationsHandler(services, store))
    return router


def _add_responses(router: APIRouter, services: Services, store: ResponseStore) -> None:
    background = Background(services, store)
    handler, stored = ResponsesHandler(services, store, background), StoredResponses(services, store, background)
    answer = openapi_body(ResponsesRequest, ResponseBody, streams=True)
    count = openapi_body(ResponsesRequest, InputTokensBody)
    response, deleted = openapi_answer(ResponseBody), openapi_answer(DeletedResponseBody)
    one = "/responses/{response_id}"
    router.post("/responses", summary="Response", openapi_extra=answer)(handler.answer)
    router.post("/responses/input_tokens", summary="Count input tokens", openapi_extra=count)(handler.count_tokens)
    router.get(one, summary="Retrieve a stored response", openapi_extra=response)(stored.retrieve)
    router.delete(one, summary="Delete a stored response", openapi_extra=deleted)(stored.delete)
    router.post(f"{one}/cancel", summary="Cancel a response", openapi_extra=response)(stored.cancel)
    router.get(f"{one}/input_items", summary="List the input of a stored response", openapi_extra=_ITEMS)(
        stored.input_items
    )


def _add_conversations(router: APIRouter, handler: ConversationsHandler) -> None:
    body, item = openapi_answer(ConversationBody), openapi_answer(ConversationItemBody)
    create = openapi_body(ConversationRequest, ConversationBody)
    update = openapi_body(ConversationUpdate, ConversationBody)
    add = openapi_body(ConversationItemsRequest, InputItemsBody)
    deleted = openapi_answer(DeletedResponseBody)
    one = "/conversations/{conversation_id}"
    router.post("/conversations", summary="Conversation", openapi_extra=create)(handler.create)
    router.get(one, summary="Retrieve a conversation", openapi_extra=body)(handler.retrieve)
    router.post(one, summary="Update a conversation", openapi_extra=update)(handler.update)
    router.delete(one, summary="Delete a conversation", openapi_extra=deleted)(handler.delete)
    router.post(f"{one}/items", summary="Add items to a conversation", openapi_extra=add)(handler.add_items)
    router.get(f"{one}/items", summary="List a conversation's items", openapi_extra=_ITEMS)(handler.list_items)
    one = f"{one}/items/{{item_id}}"
    router.get(one, summary="Retrieve a conversation's item", openapi_extra=item)(handler.retrieve_item)
    router.delete(one, summary="Delete a conversation's item", openapi_extra=body)(handler.delete_item)
