"""POST /completion and /infill: llama.cpp's own routes over raw text. Decisions on fields are in
server/llama_cpp/fields.py and docs/api.md; special tokens in prompts: server/prompts.py."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from engine.messages import GenerateReqInput
from engine.text.tokenizer import TextTokenizer
from server import limits
from server.body import convert
from server.context import context_of
from server.disconnect import unless_disconnected
from server.errors import ApiError, BadRequest, invalid
from server.extension import extension
from server.fields import refuse
from server.fill_in import fill_in_prompt, fill_in_stops
from server.json_response import json_response
from server.llama_cpp.answers import LlamaAnswers, LlamaStyle
from server.llama_cpp.fields import REFUSED, read_sampling, read_shape
from server.llama_cpp.types import CompletionRequest, InfillRequest
from server.prompts import Prompt, encode, encode_many, parse_prompts
from server.services import Services
from server.streaming import EventStream, sse
from server.text_generation import TextGeneration

T = TypeVar("T", bound=CompletionRequest)

_FILE_TOKENS = 16
"""Room for the name of a file and the marks around it."""


class LlamaCppHandler:
    """Turns one of llama.cpp's requests into engine requests, one per prompt."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def completion(self, request: Request) -> Response:
        asked = await self._read(request, CompletionRequest)
        if asked.prompt is None:
            raise BadRequest("Missing required parameter: 'prompt'.", param="prompt", code="missing_required_parameter")
        prompts = parse_prompts(asked.prompt, "prompt", self._services.engine.model_info, limits.MAX_PROMPTS)
        many = isinstance(asked.prompt, list) and type(asked.prompt[0]) is not int
        return await self._answer(request, asked, prompts, many=many)

    async def infill(self, request: Request) -> Response:
        asked = await self._read(request, InfillRequest)
        services, prompt = self._services, asked.prompt or ""
        if not isinstance(prompt, str):
            raise invalid("prompt", "a string is expected")
        text = await self._filling_in(asked, (asked.input_prefix or "") + prompt)
        prompts = parse_prompts(text, "input_prefix", services.engine.model_info, 1)
        return await self._answer(request, asked, prompts, stops=fill_in_stops(services.engine.tokenizer))

    async def _filling_in(self, asked: InfillRequest, before: str) -> str:
        """The raw prompt. Of other files, which are not what is asked about, the first ones are left out where there
        is no room for all."""
        tokenizer, after = self._services.engine.tokenizer, asked.input_suffix or ""
        files = _other_files(asked.input_extra)
        bare = fill_in_prompt(tokenizer, before, after, param="input_suffix")
        if files:
            sizes = [len(await encode(tokenizer, text)) + _FILE_TOKENS for _, text in files]
            room = self._services.engine.model_info.context_length - max(asked.n_predict or 0, 0)
            room -= len(await encode(tokenizer, bare)) + _FILE_TOKENS
            while files and sum(sizes) > room:
                del files[0], sizes[0]
        return fill_in_prompt(tokenizer, before, after, files, param="input_suffix")

    async def _read(self, request: Request, kind: type[T]) -> T:
        services = self._services
        body = await services.read_json(request.scope, request.receive)
        refuse(body, REFUSED)
        asked = convert(body, kind)
        services.require_ready()
        services.model(asked.model)
        return asked

    async def _answer(
        self,
        request: Request,
        asked: CompletionRequest,
        prompts: Sequence[Prompt],
        *,
        stops: tuple[int, ...] = (),
        many: bool = False,
    ) -> Response:
        services, context = self._services, context_of(request.scope)
        engine = services.engine
        sampling = read_sampling(asked, engine.model_info, stops)
        constrained = await services.planner.constrain_text(read_shape(asked))
        style = LlamaStyle(
            model=services.model(asked.model),
            tokenizer=engine.tokenizer,
            prompts=[_text(prompt, engine.tokenizer) for prompt in prompts],
            sampling=sampling,
            context_length=engine.model_info.context_length,
            started=context.started,
            stream=bool(asked.stream),
            listed=many,
            fields=asked.response_fields,
            tokens=bool(asked.return_tokens),
            silent=asked.n_predict == 0,
            indent=max(asked.n_indent or 0, 0),
            seconds=max(asked.t_max_predict_ms or 0, 0) / 1000,
            own=extension((), constrained.relaxations),
        )
        requests = [
            GenerateReqInput(
                text=prompt.text,
                input_ids=prompt.ids,
                sampling=sampling,
                add_special_tokens=True,
                grammar=constrained.spec,
                tenant=services.tenant(context, None),
            )
            for prompt in await encode_many(engine.tokenizer, prompts)
        ]
        generation, answers = TextGeneration(services, context, requests), LlamaAnswers(style)
        if asked.stream:
            return EventStream(_stream(generation, answers), idle_chunk=_idle, on_error=_failure, pace=services.pace)
        return json_response(await unless_disconnected(request.receive, _fold(generation, answers)))


def _other_files(given: list[Any] | None) -> list[tuple[str, str]]:
    """(name, text) of ``input_extra``. Raises BadRequest."""
    found = []
    if given is not None and len(given) > limits.MAX_PROMPTS:
        raise invalid("input_extra", f"more than {limits.MAX_PROMPTS} files")
    for index, file in enumerate(given or ()):
        where = f"input_extra[{index}]"
        if not isinstance(file, dict) or not isinstance(file.get("text"), str):
            raise invalid(where, "an object with a text is expected")
        name = file.get("filename")
        if not isinstance(name, str | None):
            raise invalid(f"{where}.filename", "a string is expected")
        found.append((name or "file", file["text"]))
    return found


def _text(prompt: Prompt, tokenizer: TextTokenizer) -> str:
    return prompt.text if prompt.text is not None else tokenizer.decode(prompt.ids or ())


def _idle() -> bytes:
    return sse({"content": "", "tokens": [], "stop": False})


def _failure(error: ApiError) -> bytes:
    return sse(error.body())


async def _stream(generation: TextGeneration, answers: LlamaAnswers) -> AsyncGenerator[bytes, None]:
    async with aclosing(generation.outputs()) as outputs:
        async for prompt, output in outputs:
            for chunk in answers.add(prompt, output):
                yield sse(chunk)
            if answers.done:
                return


async def _fold(generation: TextGeneration, answers: LlamaAnswers) -> Any:
    async with aclosing(generation.outputs()) as outputs:
        async for prompt, output in outputs:
            answers.add(prompt, output)
            if answers.done:
                break
    return answers.whole()
