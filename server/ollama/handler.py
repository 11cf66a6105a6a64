"""POST /api/chat, /api/generate, /api/embed: Ollama's requests into the same conversations, generations and vectors as
those of the other dialects. Decisions on fields are in server/ollama/fields.py and docs/api.md."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import GenerateReqInput
from engine.sampling_params import SamplingParams
from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest
from server.fields import refuse
from server.fill_in import fill_in_prompt, fill_in_stops
from server.generation import Generation
from server.json_response import json_response
from server.ollama.fields import (
    REFUSED,
    chat_messages,
    option_path,
    output_shape,
    read_think,
    sampling_fields,
)
from server.ollama.lines import AnswerLines, LineStream, LineStyle
from server.ollama.types import ChatRequest, GenerateRequest
from server.openai.logprobs import chat_logprobs
from server.openai.sampling import sampling_params
from server.param_names import renamed
from server.planner import Conversation, Plan, template_kwargs
from server.services import Services, body_size
from server.tools import Tools, parse_tools
from toolcall import OutputParser


class OllamaHandler:
    """Turns one Ollama request into one engine request, and engine text into lines."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def chat(self, request: Request) -> Response:
        asked = convert(await self._body(request), ChatRequest)
        style = self._style(asked, request)
        if not asked.messages:
            return json_response(style.loaded())
        tools = parse_tools(asked.tools, None, None)
        conversation = self._conversation(asked, chat_messages(asked.messages), request, tools)
        return await self._answer(await self._services.planner.plan(conversation), style, asked, request)

    async def generate(self, request: Request) -> Response:
        asked = convert(await self._body(request), GenerateRequest)
        style = self._style(asked, request)
        if not asked.prompt and not asked.suffix:
            return json_response(style.loaded())
        if asked.raw or asked.suffix:
            return await self._answer(await self._raw_plan(asked, request), style, asked, request)
        system = [{"role": "system", "content": asked.system}] if asked.system else []
        messages: list[dict[str, Any]] = [*system, {"role": "user", "content": asked.prompt}]
        conversation = self._conversation(asked, messages, request)
        return await self._answer(await self._services.planner.plan(conversation), style, asked, request)

    async def _body(self, request: Request) -> dict[str, Any]:
        body = await self._services.read_json(request.scope, request.receive)
        refuse(body, REFUSED)
        return body

    def _style(self, asked: ChatRequest | GenerateRequest, request: Request) -> LineStyle:
        services = self._services
        services.require_ready()
        services.model(asked.model)
        return LineStyle(
            model=asked.model,
            kind="chat" if isinstance(asked, ChatRequest) else "generate",
            started=context_of(request.scope).started,
            logprobs=chat_logprobs(services.engine.tokenizer) if asked.logprobs else None,
        )

    def _conversation(
        self,
        asked: ChatRequest | GenerateRequest,
        messages: list[dict[str, Any]],
        request: Request,
        tools: Tools | None = None,
    ) -> Conversation:
        think, effort = read_think(asked.think)
        resume = messages[-1]["role"] == "assistant" and bool(messages[-1]["content"])
        return Conversation(
            messages=messages,
            sampling=self._sampling(asked),
            tools=tools or Tools(),
            shape=output_shape(asked.format),
            template_kwargs=template_kwargs(None, effort, think),
            add_generation_prompt=not resume,
            continue_final_message=resume,
            tenant=self._services.tenant(context_of(request.scope), None),
            size=body_size(request.scope),
        )

    def _sampling(self, asked: ChatRequest | GenerateRequest) -> SamplingParams:
        if asked.top_logprobs and not asked.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true.", param="top_logprobs")
        with renamed(option_path):
            fields = sampling_fields(asked.options)
            return sampling_params(
                fields,
                self._services.engine.model_info,
                max_tokens=fields.max_tokens,
                logprobs=bool(asked.logprobs),
                top_logprobs=asked.top_logprobs or 0,
            )

    async def _raw_plan(self, asked: GenerateRequest, request: Request) -> Plan:
        """A prompt that no template touches. Special tokens spelled in it are special, as on /v1/completions."""
        planner, tokenizer = self._services.planner, self._services.engine.tokenizer
        sampling, prompt = self._sampling(asked), asked.prompt or ""
        if asked.suffix:
            prompt = fill_in_prompt(tokenizer, prompt, asked.suffix)
            sampling = msgspec.structs.replace(sampling, stop_token_ids=fill_in_stops(tokenizer))
        constrained = await planner.constrain_text(output_shape(asked.format))
        wanted = GenerateReqInput(
            text=prompt,
            sampling=sampling,
            add_special_tokens=True,
            grammar=constrained.spec,
            tenant=self._services.tenant(context_of(request.scope), None),
        )
        return Plan(
            wanted,
            lambda: OutputParser(planner.dialect.format, ()),
            single_call=False,
            relaxations=constrained.relaxations,
        )

    async def _answer(
        self, plan: Plan, style: LineStyle, asked: ChatRequest | GenerateRequest, request: Request
    ) -> Response:
        services = self._services
        generation = Generation(services, plan, context_of(request.scope))
        stream = asked.stream is not False
        lines = AnswerLines(style.relaxed(plan.relaxations), stream=stream)
        if stream:
            chunks = generation.stream(lines.write, partial(lines.end, generation.usage))
            return LineStream(chunks, idle_chunk=lines.idle, on_error=lines.fail, pace=services.pace)
        return json_response(await unless_disconnected(request.receive, generation.fold(lines.write, lines.whole)))
