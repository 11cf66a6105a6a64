"""POST /v1/responses and what is stored of it. One Conversation, one Generation, as for chat; only the words differ.

Decisions on fields are in server/openai/responses/fields.py and docs/api.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from server.blocks import BlockFold
from server.body import convert
from server.constraints import OutputShape, parse_structured_outputs
from server.context import RequestContext, context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest, invalid
from server.fields import check_choice
from server.generation import Generation, Usage
from server.json_response import json_response
from server.openai.chat import EFFORTS
from server.openai.logprobs import chat_logprobs
from server.openai.responses.background import Background, Job
from server.openai.responses.conversations import Conversations, conversation_id
from server.openai.responses.events import ResponseEvents, ResponseStyle, complete
from server.openai.responses.fields import refuse_fields
from server.openai.responses.input import read_items, to_messages
from server.openai.responses.items import parsed, resolved
from server.openai.responses.store import ResponseNotFound, ResponseStore, StoredResponse
from server.openai.responses.tools import (
    Declared,
    declared_tools,
    echoed_choice,
    echoed_format,
    echoed_tools,
    read_text,
    read_tools,
)
from server.openai.sampling import check_common, sampling_params
from server.openai.types.responses import ResponsesRequest
from server.param_names import Rename, renamed, tool_path
from server.planner import Conversation, template_kwargs
from server.services import Services, body_size
from server.streaming import COMMENT, EventStream

_SUMMARIES = ("auto", "concise", "detailed")
_LOGPROBS = "message.output_text.logprobs"


@dataclass(frozen=True, slots=True)
class _Call:
    """One checked request. items: its own input; turns: the stored ones before it."""

    request: ResponsesRequest
    conversation: Conversation
    style: ResponseStyle
    rename: Rename
    items: Sequence[dict[str, Any]]
    turns: tuple[bytes, ...]
    tenant: str
    conversation_id: str | None = None


class ResponsesHandler:
    """Turns one Responses request into one engine request, and engine text into items or events."""

    def __init__(self, services: Services, store: ResponseStore, background: Background) -> None:
        self._services = services
        self._store = store
        self._background = background
        self._conversations = Conversations(store)

    async def answer(self, request: Request) -> Response:
        services = self._services
        body = await services.read_json(request.scope, request.receive)
        call = await self._read(body, request)
        with renamed(call.rename):
            plan = await services.planner.plan(call.conversation)
        notes = [call.rename(note) for note in plan.relaxations]
        call = replace(call, style=replace(call.style, relaxations=notes, custom=plan.custom))
        context = context_of(request.scope)
        context.response_id = call.style.fields["id"]
        generation = Generation(services, plan, context, call.rename)
        if call.request.background:
            return self._in_background(call, generation, context)
        if call.request.stream:
            events = ResponseEvents(call.style)
            chunks = generation.stream(events.write, partial(self._end, call, events, generation.usage))
            return EventStream(chunks, idle_chunk=events.idle, on_error=events.fail, pace=services.pace)
        fold = BlockFold(logprobs=call.style.logprobs is not None)
        answer = generation.fold(fold.add, partial(self._whole, call, fold))
        return json_response(await unless_disconnected(request.receive, answer))

    def _in_background(self, call: _Call, generation: Generation, context: RequestContext) -> Response:
        self._background.check_room(call.tenant)
        events = ResponseEvents(call.style)
        chunks = generation.stream(events.write, partial(self._end, call, events, generation.usage))
        job = Job(call.style.response("queued"), events, [] if call.request.stream else None)
        self._background.start(job, chunks, partial(self._store_state, call), context)
        if call.request.stream:
            return EventStream(job.follow(), idle_chunk=lambda: COMMENT, pace=self._services.pace)
        return json_response(job.response)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/responses/input_tokens."""
        services = self._services
        body = await services.read_json(request.scope, request.receive)
        call = await self._read({**body, "stream": False, "stream_options": None}, request)
        with renamed(call.rename):
            count = await services.planner.count_tokens(call.conversation)
        return json_response({"object": "response.input_tokens", "input_tokens": count})

    def _end(self, call: _Call, events: ResponseEvents, usage: Usage) -> bytes:
        response, last = events.end(usage)
        self._keep(call, response)
        return last

    def _whole(self, call: _Call, fold: BlockFold, usage: Usage) -> dict[str, Any]:
        complete(fold)
        response = call.style.ended(fold, usage)
        self._keep(call, response)
        return response

    def _keep(self, call: _Call, response: dict[str, Any]) -> None:
        own, output = orjson.dumps(call.items), orjson.dumps(response["output"])
        if call.conversation_id is not None:
            self._conversations.extend(call.tenant, call.conversation_id, own, output)
        if call.request.store is not False:
            self._store_state(call, response)

    def _store_state(self, call: _Call, response: dict[str, Any]) -> None:
        """Keep the response as it is."""
        own, output = orjson.dumps(call.items), orjson.dumps(response["output"])
        item_ids = tuple(item["id"] for item in (*call.items, *response["output"]))
        entry = StoredResponse(response["id"], orjson.dumps(response), own, (*call.turns, own, output), item_ids)
        self._store.put(call.tenant, entry)

    async def _read(self, body: Mapping[str, Any], request: Request) -> _Call:
        """The checked request and what it asks for. Raises ApiError."""
        services, context = self._services, context_of(request.scope)
        refuse_fields(body)
        asked = convert(dict(body), ResponsesRequest)
        services.require_ready()
        services.model(asked.model)
        check_common(asked)
        _check_truncation(asked.truncation)
        if asked.background and asked.store is False:
            raise BadRequest("A response in the background must be stored.", param="background")
        items = await resolved(read_items(asked.input, continues=_continues(asked)), self._store, context.tenant)
        turns = self._turns(context.tenant, asked)
        history = await parsed(turns)
        declared = declared_tools(asked.tools, [*history, *items], len(history))

        def rename(param: str) -> str:
            return "input" if param.startswith("messages") else tool_path(param, [entry.path for entry in declared])

        with renamed(rename):
            conversation = Conversation(
                messages=to_messages(asked.instructions, history, items),
                sampling=self._sampling(asked),
                tools=read_tools(declared, asked.tool_choice, asked.parallel_tool_calls),
                shape=_shape(asked),
                template_kwargs=template_kwargs(asked.chat_template_kwargs, _effort(asked.reasoning)),
                tenant=services.tenant(context, asked.cache_salt),
                priority=asked.priority or 0,
                size=body_size(request.scope) + sum(map(len, turns)),
            )
        style = self._style(asked, {entry.name: entry for entry in declared if entry.namespace})
        return _Call(
            asked, conversation, style, rename, items, turns, context.tenant, conversation_id(asked.conversation)
        )

    def _turns(self, tenant: str, asked: ResponsesRequest) -> tuple[bytes, ...]:
        """The stored items before those of the request."""
        previous, conversation = asked.previous_response_id, conversation_id(asked.conversation)
        if conversation is not None:
            if previous is not None:
                raise BadRequest("'conversation' and 'previous_response_id' exclude each other.", param="conversation")
            return self._conversations.get(tenant, conversation, "conversation").turns
        if previous is None:
            return ()
        if self._background.find(tenant, previous) is not None:
            raise BadRequest("The previous response is still in progress.", param="previous_response_id")
        try:
            return self._store.get(tenant, previous).turns
        except ResponseNotFound:
            raise BadRequest(
                f"Previous response with id '{previous[:64]}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None

    def _sampling(self, asked: ResponsesRequest) -> Any:
        return sampling_params(
            asked,
            self._services.engine.model_info,
            max_tokens=asked.max_output_tokens,
            max_tokens_param="max_output_tokens",
            logprobs=_wants_logprobs(asked),
            top_logprobs=asked.top_logprobs or 0 if _wants_logprobs(asked) else 0,
        )

    def _style(self, asked: ResponsesRequest, inside: Mapping[str, Declared]) -> ResponseStyle:
        """inside: the tools of namespaces, by what the model calls them."""
        tokenizer = self._services.engine.tokenizer
        return ResponseStyle(
            _fields(asked, self._services.model(asked.model)),
            chat_logprobs(tokenizer) if _wants_logprobs(asked) else None,
            summary=_summary(asked.reasoning) is not None,
            namespaces={name: (entry.namespace, entry.tool["name"]) for name, entry in inside.items()},
        )


def _fields(asked: ResponsesRequest, model: str) -> dict[str, Any]:
    """The response object without its state."""
    reasoning = asked.reasoning or {}
    return {
        "id": "resp_" + secrets.token_hex(24),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": bool(asked.background),
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "model": model,
        "output": [],
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": reasoning.get("effort"), "summary": _summary(asked.reasoning)},
        "safety_identifier": asked.safety_identifier,
        "service_tier": "default",
        "store": asked.store is not False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": {"format": echoed_format(asked.text), "verbosity": "medium"},
        "tool_choice": echoed_choice(asked.tool_choice),
        "tools": echoed_tools(asked.tools),
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": asked.user,
        "metadata": asked.metadata or {},
        **({"conversation": {"id": conversation_id(asked.conversation)}} if asked.conversation else {}),
    }


def _continues(asked: ResponsesRequest) -> bool:
    return asked.previous_response_id is not None or asked.conversation is not None


def _wants_logprobs(asked: ResponsesRequest) -> bool:
    return bool(asked.top_logprobs) or _LOGPROBS in (asked.include or ())


def _shape(asked: ResponsesRequest) -> OutputShape:
    if not asked.structured_outputs:
        return read_text(asked.text)
    if (asked.text or {}).get("format"):
        raise BadRequest("'text.format' and 'structured_outputs' exclude each other.", param="structured_outputs")
    return parse_structured_outputs(asked.structured_outputs)


def _summary(reasoning: Mapping[str, Any] | None) -> str | None:
    """Which summary of the reasoning a client asks for, by either name of the field. There is one kind: the reasoning
    itself."""
    for name in ("summary", "generate_summary"):
        wanted = (reasoning or {}).get(name)
        if wanted in _SUMMARIES:
            return str(wanted)
        if wanted not in (None, "none"):
            raise invalid(f"reasoning.{name}", f"one of {', '.join(_SUMMARIES)} is expected")
    return None


def _effort(reasoning: Mapping[str, Any] | None) -> str | None:
    effort = (reasoning or {}).get("effort")
    check_choice(effort, EFFORTS, "reasoning.effort")
    return effort


def _check_truncation(value: str | None) -> None:
    if value not in (None, "auto", "disabled"):
        raise invalid("truncation", "'auto' or 'disabled' is expected")
