"""POST /v1/chat/completions: one OpenAI request into one engine request, and engine text into OpenAI's answer; and what
a request's prompt is, without generating.

Streaming and folding read the same deltas. Decisions on fields are in server/openai/fields.py and docs/api.md.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest, Unsupported, invalid
from server.fields import check_choice
from server.generation import Generation
from server.json_response import json_response
from server.openai.chat_chunks import ChatFold, ChatStyle, ChunkWriter
from server.openai.fields import refuse_unsupported
from server.openai.foreign_shapes import in_chat_shape
from server.openai.logprobs import chat_logprobs
from server.openai.messages import check_messages
from server.openai.sampling import check_common, sampling_params
from server.openai.shape import output_shape
from server.openai.stream_usage import StreamUsage
from server.openai.types.chat import ChatCompletionRequest
from server.param_names import Rename, renamed
from server.planner import Conversation, Plan, template_kwargs
from server.prompts import encode
from server.services import Services, body_size
from server.streaming import EventStream
from server.tools import Tools, function_path, parse_functions, parse_tools

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_REASONING_FORMATS = ("none", "raw", "auto", "deepseek", "deepseek-legacy", "parsed", "hidden")
"""llama.cpp's and Groq's words for where reasoning goes: the first two leave it in the text, the last one drops it."""


class ChatHandler:
    """Turns one OpenAI request into one engine request, and engine text back into OpenAI chunks."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        services, context = self._services, context_of(request.scope)
        body = await services.read_json(request.scope, request.receive)
        chat, conversation = self.read(body, request)
        rename: Rename = str if chat.functions is None else function_path
        with renamed(rename):
            plan = await services.planner.plan(conversation)
        generation = Generation(services, plan, context)
        style = self._style(chat, plan, [rename(note) for note in plan.relaxations])
        context.response_id = style.id
        if chat.stream:
            usage = StreamUsage.asked(chat.stream_options)
            writer = ChunkWriter(style, partial(usage.tail, lambda: generation.total().as_dict()))
            end = partial(writer.end, generation.usage if usage.include else None)
            return EventStream(generation.stream(writer.write, end), idle_chunk=writer.idle, pace=services.pace)
        fold = ChatFold(style)
        return json_response(await unless_disconnected(request.receive, generation.fold(fold.add, fold.result)))

    async def render(self, request: Request) -> Response:
        """POST /v1/chat/completions/render: the prompt as the model sees it, as text and as token ids."""
        services = self._services
        chat, conversation = self.read(await services.read_json(request.scope, request.receive), request)
        prompt = await services.planner.render(conversation)
        ids = await encode(services.engine.tokenizer, prompt.text, guard=prompt.guard)
        return json_response(
            {
                "object": "chat.completion.prompt",
                "model": services.model(chat.model),
                "prompt": prompt.plain,
                "token_ids": ids,
                "prompt_tokens": len(ids),
                "max_model_len": services.engine.model_info.context_length,
            }
        )

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/chat/completions/input_tokens."""
        services = self._services
        _, conversation = self.read(await services.read_json(request.scope, request.receive), request)
        count = await services.planner.count_tokens(conversation)
        return json_response({"object": "chat.completion.input_tokens", "input_tokens": count})

    def read(self, body: dict[str, Any], request: Request) -> tuple[ChatCompletionRequest, Conversation]:
        """The checked request and what it asks for. Raises ApiError."""
        services, context = self._services, context_of(request.scope)
        body = in_chat_shape(body)
        refuse_unsupported(body)
        chat = convert(body, ChatCompletionRequest)
        services.require_ready()
        services.model(chat.model)
        check_common(chat)
        check_messages(chat.messages)
        effort = _effort(chat)
        tools = _tools(chat)
        conversation = Conversation(
            messages=chat.messages,
            sampling=self._sampling(chat),
            tools=tools,
            shape=output_shape(body),
            template_kwargs=template_kwargs(chat.chat_template_kwargs, effort, _think(chat)),
            template=self._template(chat),
            separate_reasoning=_separates(chat),
            tenant=services.tenant(context, chat.cache_salt),
            priority=chat.priority or 0,
            size=body_size(request.scope),
            **_prompt_end(chat),
        )
        return chat, conversation

    def _sampling(self, chat: ChatCompletionRequest) -> Any:
        if chat.top_logprobs and not chat.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        modern = chat.max_completion_tokens is not None
        return sampling_params(
            chat,
            self._services.engine.model_info,
            max_tokens=chat.max_completion_tokens if modern else chat.max_tokens,
            max_tokens_param="max_completion_tokens" if modern else "max_tokens",
            logprobs=bool(chat.logprobs),
            top_logprobs=chat.top_logprobs or 0,
        )

    def _template(self, chat: ChatCompletionRequest) -> str | None:
        if chat.chat_template is not None and not self._services.args.trust_request_chat_template:
            raise Unsupported("chat_template", "Chat templates in requests are turned off on this server.")
        return chat.chat_template

    def _style(self, chat: ChatCompletionRequest, plan: Plan, notes: Sequence[str]) -> ChatStyle:
        legacy = chat.functions is not None
        return ChatStyle(
            id="chatcmpl-" + secrets.token_hex(16),
            created=int(time.time()),
            model=self._services.model(chat.model),
            calls="function_call" if legacy else "tool_calls",
            finish_calls="function_call" if legacy else self._services.args.tool_finish_reason,
            reasoning=_reasoning_fields(chat),
            logprobs=chat_logprobs(self._services.engine.tokenizer) if chat.logprobs else None,
            token_ids=bool(chat.return_token_ids),
            relaxations=notes,
            custom=plan.custom,
        )


def _tools(chat: ChatCompletionRequest) -> Tools:
    if chat.functions is None and chat.function_call is None:
        return parse_tools(chat.tools, chat.tool_choice, chat.parallel_tool_calls)
    if chat.tools:
        raise BadRequest("'functions' and 'tools' exclude each other; use 'tools'.", param="functions")
    return parse_functions(chat.functions, chat.function_call)


def _reasoning(chat: ChatCompletionRequest) -> dict[str, Any]:
    """``reasoning``, in which clients of OpenRouter and of Responses say what chat has words of its own for."""
    return chat.reasoning if isinstance(chat.reasoning, dict) else {}


def _reasoning_fields(chat: ChatCompletionRequest) -> Sequence[str]:
    """Where the answer has its reasoning; clients of OpenRouter and Groq, which ask so, read it in a field of its
    own."""
    asked, form = _reasoning(chat), chat.reasoning_format
    if chat.include_reasoning is False or asked.get("exclude") is True or form == "hidden":
        return ()
    return ("reasoning_content", "reasoning") if asked or form == "parsed" else ("reasoning_content",)


def _separates(chat: ChatCompletionRequest) -> bool:
    """Whether reasoning is taken out of the text."""
    check_choice(chat.reasoning_format, _REASONING_FORMATS, "reasoning_format")
    if chat.separate_reasoning is not None:
        return chat.separate_reasoning
    return chat.reasoning_format not in ("none", "raw")


def _effort(chat: ChatCompletionRequest) -> str | None:
    param, effort = "reasoning_effort", chat.reasoning_effort
    if effort is None:
        param, effort = "reasoning.effort", _reasoning(chat).get("effort")
    check_choice(effort, EFFORTS, param)
    return effort


def _think(chat: ChatCompletionRequest) -> bool | None:
    """Whether the model is asked to think, in the words of other servers: ``enable_thinking``, else ``thinking``, else
    ``reasoning.enabled``."""
    thinking = chat.thinking
    if chat.enable_thinking is not None:
        return chat.enable_thinking
    if thinking is None:
        enabled = _reasoning(chat).get("enabled")
        return enabled if isinstance(enabled, bool) else None
    if isinstance(thinking, bool):
        return thinking
    kind = thinking.get("type")
    if kind not in ("enabled", "disabled", "adaptive", "auto"):
        raise invalid("thinking.type", "'enabled', 'disabled', 'adaptive' or 'auto' is expected")
    return {"enabled": True, "disabled": False}.get(str(kind))


def _is_prefix(last: Mapping[str, Any]) -> bool:
    """Whether the last message says, as DeepSeek's and Mistral's clients have it, that the answer goes on from it."""
    begun = last["role"] == "assistant" and last.get("prefix") is True
    return begun and bool(last.get("content")) and not last.get("tool_calls")


def _prompt_end(chat: ChatCompletionRequest) -> dict[str, bool]:
    resume = bool(chat.continue_final_message)
    if chat.continue_final_message is None and chat.add_generation_prompt is None:
        resume = _is_prefix(chat.messages[-1])
    if resume and chat.add_generation_prompt:
        raise BadRequest(
            "continue_final_message and add_generation_prompt exclude each other.", param="continue_final_message"
        )
    add = chat.add_generation_prompt if chat.add_generation_prompt is not None else not resume
    return {"add_generation_prompt": add, "continue_final_message": resume}
