"""POST /v1/messages and /v1/messages/count_tokens. One Conversation, one Generation, as for chat.

Decisions on fields are in server/anthropic/fields.py and docs/api.md.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from server.anthropic.events import MessageEvents, MessageFold, MessageStyle
from server.anthropic.fields import read_effort, read_format, read_thinking, read_tools, refuse_fields, tool_places
from server.anthropic.messages import check_answerable, is_prefill, read_conversation
from server.anthropic.types import CountTokensRequest, MessagesRequest
from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.generation import Generation
from server.json_response import json_response
from server.openai.sampling import check_common, sampling_params
from server.openai.types.common import SamplingFields
from server.param_names import Rename, renamed, tool_path
from server.planner import Conversation, template_kwargs
from server.services import Services, body_size
from server.streaming import EventStream

_PARAMETERS = re.compile(r"(tools\[\d+\])\.parameters")


@dataclass(frozen=True, slots=True)
class _Call:
    """One checked request."""

    conversation: Conversation
    thinking: bool
    rename: Rename


class MessagesHandler:
    """Turns one Messages request into one engine request, and engine text into content blocks or events."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        services, context = self._services, context_of(request.scope)
        body = await services.read_json(request.scope, request.receive)
        refuse_fields(body)
        asked = convert(body, MessagesRequest)
        call = self._read(asked, request)
        check_answerable(call.conversation.messages)
        with renamed(call.rename):
            plan = await services.planner.plan(call.conversation)
        style = MessageStyle(
            id="msg_" + secrets.token_hex(16),
            model=services.model(asked.model),
            request_id=context.request_id,
            thinking=call.thinking,
            stop_sequences=tuple(asked.stop_sequences or ()),
            relaxations=[call.rename(note) for note in plan.relaxations],
        )
        context.response_id = style.id
        generation = Generation(services, plan, context, call.rename)
        if asked.stream:
            events = MessageEvents(style, generation.usage)
            chunks = generation.stream(events.write, events.end)
            return EventStream(chunks, idle_chunk=events.idle, on_error=events.fail, pace=services.pace)
        fold = MessageFold(style)
        return json_response(await unless_disconnected(request.receive, generation.fold(fold.add, fold.message)))

    async def count_tokens(self, request: Request) -> Response:
        services = self._services
        body = await services.read_json(request.scope, request.receive)
        refuse_fields(body)
        call = self._read(convert(body, CountTokensRequest), request)
        with renamed(call.rename):
            count = await services.planner.count_tokens(call.conversation)
        return json_response({"input_tokens": count})

    def _read(self, asked: CountTokensRequest, request: Request) -> _Call:
        services, context = self._services, context_of(request.scope)
        services.require_ready()
        services.model(asked.model)
        places = tool_places(asked.tools)

        def rename(param: str) -> str:
            if param.startswith("stop"):
                return "stop_sequences"
            return _PARAMETERS.sub(r"\1.input_schema", tool_path(param, [f"tools[{place}]" for place in places]))

        think, shown = read_thinking(asked.thinking)
        with renamed(rename):
            messages = read_conversation(asked.system, asked.messages)
            resume = is_prefill(messages)
            fields = _sampling_fields(asked)
            conversation = Conversation(
                messages=messages,
                sampling=sampling_params(fields, services.engine.model_info, max_tokens=fields.max_tokens),
                tools=read_tools(asked.tools, places, asked.tool_choice),
                shape=read_format(asked.output_config, asked.output_format),
                template_kwargs=template_kwargs(asked.chat_template_kwargs, read_effort(asked.output_config), think),
                add_generation_prompt=not resume,
                continue_final_message=resume,
                tenant=services.tenant(context, fields.cache_salt),
                priority=fields.priority or 0,
                size=body_size(request.scope),
            )
        return _Call(conversation, shown, rename)


def _sampling_fields(asked: CountTokensRequest) -> SamplingFields:
    """The fields of the sampler under the names that all endpoints share, checked."""
    if not isinstance(asked, MessagesRequest):
        return SamplingFields()
    fields = SamplingFields(
        max_tokens=asked.max_tokens,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        seed=asked.seed,
        stop=asked.stop_sequences,
        priority=asked.priority,
        cache_salt=asked.cache_salt,
    )
    check_common(fields)
    return fields
