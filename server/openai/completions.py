"""POST /v1/completions: raw text on. Decisions are in docs/api.md; special tokens in prompts: server/prompts.py."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import GenerateReqInput
from engine.sampling_params import SamplingParams
from server import limits
from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest
from server.fields import refuse
from server.fill_in import fill_in_prompt, fill_in_stops
from server.json_response import MANY_LOGPROBS, json_response, off_loop
from server.openai.completion_text import CompletionFold, CompletionStyle, CompletionWriter, Echo
from server.openai.fields import COMPLETIONS_REFUSED
from server.openai.sampling import check_common, sampling_params
from server.openai.shape import output_shape
from server.openai.stream_usage import StreamUsage
from server.openai.types.completions import CompletionRequest
from server.prompts import Prompt, encode_many, encode_prompt, parse_prompts, too_long
from server.services import Services
from server.streaming import EventStream
from server.text_generation import TextGeneration

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, on this endpoint."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A checked request. n: choices per prompt in the answer; sampling.n may be more (best_of)."""

    request: CompletionRequest
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    n: int
    echo_only: bool


class CompletionsHandler:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        services, context = self._services, context_of(request.scope)
        body = await services.read_json(request.scope, request.receive)
        wanted = self._read(body)
        constrained = await services.planner.constrain_text(output_shape(body))
        style = await self._style(wanted)
        context.response_id = style.id
        special = wanted.request.add_special_tokens is not False
        prompts = await encode_many(services.engine.tokenizer, wanted.prompts, add_special_tokens=special)
        requests = [
            GenerateReqInput(
                text=prompt.text,
                input_ids=prompt.ids,
                sampling=wanted.sampling,
                add_special_tokens=special,
                grammar=constrained.spec,
                tenant=services.tenant(context, wanted.request.cache_salt),
                priority=wanted.request.priority or 0,
                prompt_logprobs=bool(style.echoes) and style.logprobs,
            )
            for prompt in prompts
        ]
        generation = TextGeneration(services, context, requests)
        if wanted.request.stream:
            usage = StreamUsage.asked(wanted.request.stream_options)
            writer = CompletionWriter(style, partial(usage.tail, lambda: style.usage(generation.total())))
            return EventStream(_stream(generation, writer, usage.include), idle_chunk=writer.idle, pace=services.pace)
        return json_response(await unless_disconnected(request.receive, _fold(generation, CompletionFold(style))))

    def _read(self, body: dict[str, Any]) -> _Wanted:
        """The checked request. Raises ApiError."""
        services = self._services
        refuse(body, COMPLETIONS_REFUSED)
        request = convert(body, CompletionRequest)
        services.require_ready()
        services.model(request.model)
        check_common(request)
        info = services.engine.model_info
        if request.logprobs is not None and not 0 <= request.logprobs <= limits.MAX_COMPLETION_LOGPROBS:
            raise BadRequest(f"logprobs must lie between 0 and {limits.MAX_COMPLETION_LOGPROBS}.", param="logprobs")
        candidates = _candidates(request)
        echo_only = bool(request.echo) and request.max_tokens == 0
        sampling = sampling_params(
            request,
            info,
            max_tokens=1 if echo_only else _max_tokens(request),
            logprobs=request.logprobs is not None or candidates > (request.n or 1),
            top_logprobs=request.logprobs or 0,
            n=candidates,
        )
        prompts = parse_prompts(request.prompt, "prompt", info, limits.MAX_PROMPTS)
        if request.suffix:
            prompts, sampling = self._filling_in(request, prompts, sampling)
        if len(prompts) * candidates > limits.MAX_COMPLETIONS:
            raise BadRequest(
                f"More than {limits.MAX_COMPLETIONS} completions were asked for (prompts times n or best_of).",
                param="prompt",
            )
        return _Wanted(request, prompts, sampling, request.n or 1, echo_only)

    def _filling_in(
        self, request: CompletionRequest, prompts: Sequence[Prompt], sampling: SamplingParams
    ) -> tuple[tuple[Prompt, ...], SamplingParams]:
        """Prompts with a suffix as prompts without one. Raises BadRequest."""
        tokenizer, suffix = self._services.engine.tokenizer, request.suffix or ""
        if request.echo:
            raise BadRequest("'echo' and 'suffix' exclude each other.", param="echo")
        if len(suffix) > limits.MAX_PROMPT_CHARS:
            raise too_long(
                self._services.engine.model_info, f"your prompt has {len(suffix)} characters behind it", "suffix"
            )
        texts = [prompt.text for prompt in prompts if prompt.text is not None]
        if len(texts) < len(prompts):
            raise BadRequest("With 'suffix' prompts must be strings.", param="prompt")
        filled = tuple(Prompt(text=fill_in_prompt(tokenizer, text, suffix)) for text in texts)
        stops = (*sampling.stop_token_ids, *fill_in_stops(tokenizer))
        return filled, msgspec.structs.replace(sampling, stop_token_ids=stops)

    async def _style(self, wanted: _Wanted) -> CompletionStyle:
        request, tokenizer = wanted.request, self._services.engine.tokenizer
        special = request.add_special_tokens is not False
        echoes = [
            Echo(
                prompt.text if prompt.text is not None else tokenizer.decode(prompt.ids or ()),
                await encode_prompt(tokenizer, prompt, add_special_tokens=special),
            )
            for prompt in (wanted.prompts if request.echo else ())
        ]
        return CompletionStyle(
            id="cmpl-" + secrets.token_hex(16),
            created=int(time.time()),
            model=self._services.model(request.model),
            n=wanted.n,
            tokenizer=tokenizer,
            logprobs=request.logprobs is not None,
            token_ids=bool(request.return_token_ids),
            echoes=echoes,
            drop_text=wanted.echo_only,
            skip_special=request.skip_special_tokens is not False,
        )


def _max_tokens(request: CompletionRequest) -> int:
    return DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens


def _candidates(request: CompletionRequest) -> int:
    """Choices to generate per prompt. best_of 0 counts as not given."""
    n, best_of = 1 if request.n is None else request.n, request.best_of or 0
    if not best_of:
        return n
    if not 1 <= best_of <= limits.MAX_BEST_OF or best_of < n:
        raise BadRequest(f"best_of must lie between n and {limits.MAX_BEST_OF}.", param="best_of")
    if request.stream and best_of > n:
        raise BadRequest("best_of cannot be streamed: the best is known only at the end.", param="best_of")
    return best_of


async def _stream(
    generation: TextGeneration, writer: CompletionWriter, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    async with aclosing(generation.outputs()) as outputs:
        async for prompt, output in outputs:
            chunk = await off_loop(len(output.prompt_logprobs) > MANY_LOGPROBS, writer.write, prompt, output)
            if chunk:
                yield chunk
    yield writer.end(generation.usage if include_usage else None)


async def _fold(generation: TextGeneration, fold: CompletionFold) -> dict[str, Any]:
    logprobs = 0
    async with aclosing(generation.outputs()) as outputs:
        async for prompt, output in outputs:
            fold.add(prompt, output)
            logprobs += len(output.logprobs) + len(output.prompt_logprobs)
    return await off_loop(logprobs > MANY_LOGPROBS, fold.result, generation.usage)
