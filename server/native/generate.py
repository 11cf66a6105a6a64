"""POST /generate: SGLang's native route, over raw text or token ids. Decisions are in docs/api.md."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from engine.messages import GenerateReqInput, GrammarSpec
from engine.sampling_params import SamplingParams
from server import limits
from server.body import convert
from server.constraints import FREE, OutputShape, parse_constraint
from server.context import RequestContext, context_of
from server.disconnect import unless_disconnected
from server.errors import BadRequest, Unsupported
from server.json_response import MANY_LOGPROBS, json_response, off_loop
from server.native.generate_text import NativeAnswers, NativeStyle
from server.native.types import GenerateRequest, NativeSampling
from server.openai.sampling import check_cache_salt, check_priority, sampling_params
from server.openai.types.common import SamplingFields
from server.param_names import renamed
from server.prompts import Prompt, encode_many, encode_prompt, parse_prompts
from server.running_requests import RequestAborted
from server.services import Services
from server.streaming import COMMENT, DONE, EventStream, sse
from server.structural_tag import parse_structural_tag
from server.text_generation import TextGeneration

DEFAULT_MAX_NEW_TOKENS = 128
REFUSED = (
    "input_embeds", "image_data", "video_data", "audio_data", "lora_path", "session_params", "token_ids_logprob",
    "return_hidden_states", "return_routed_experts", "custom_logit_processor", "bootstrap_host", "bootstrap_port",
    "bootstrap_room",
)  # fmt: skip
"""Fields of GenerateReqInput that would change the answer and are not implemented."""
_NATIVE_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_SHAPES = ("regex", "ebnf", "json_schema", "structural_tag")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A checked request; one entry of sampling and grammars per prompt. ``text`` or ``input_ids``: param."""

    request: GenerateRequest
    prompts: Sequence[Prompt]
    sampling: Sequence[SamplingParams]
    shapes: Sequence[OutputShape]
    names: Sequence[str]
    param: str
    batch: bool


class GenerateHandler:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def answer(self, request: Request) -> Response:
        services, context = self._services, context_of(request.scope)
        wanted = self._read(await services.read_json(request.scope, request.receive))
        planner = services.planner
        grammars = {id(shape): (await planner.constrain_text(shape)).spec for shape in wanted.shapes}
        prompts = await encode_many(services.engine.tokenizer, wanted.prompts)
        requests = self._requests(wanted, prompts, [grammars[id(shape)] for shape in wanted.shapes], context)
        style = await self._style(wanted, context)
        rids = [wanted.request.rid] if isinstance(wanted.request.rid, str) else wanted.request.rid or ()
        generation = TextGeneration(services, context, requests, (*rids, *wanted.names), wanted.param)
        answers = NativeAnswers(style)
        if wanted.request.stream:
            return EventStream(_stream(generation, answers, style), idle_chunk=_idle, pace=services.pace)
        return json_response(await unless_disconnected(request.receive, _fold(generation, answers)))

    def _read(self, body: dict[str, Any]) -> _Wanted:
        """Raises ApiError."""
        services = self._services
        for name in REFUSED:
            if body.get(name):
                raise Unsupported(name)
        request = convert(body, GenerateRequest)
        services.require_ready()
        services.model(request.model)
        check_cache_salt(request.cache_salt)
        check_priority(request.priority)
        if (request.text is None) == (request.input_ids is None):
            raise BadRequest("Exactly one of 'text' and 'input_ids' is needed.", param="text")
        param = "text" if request.input_ids is None else "input_ids"
        value = request.text if request.input_ids is None else request.input_ids
        prompts = parse_prompts(value, param, services.engine.model_info, limits.MAX_PROMPTS)
        batch = isinstance(value, list) and not (param == "input_ids" and type(value[0]) is int)
        sampling, shapes = self._sampling(request, len(prompts))
        if len(prompts) * sampling[0].n > limits.MAX_COMPLETIONS:
            raise BadRequest(f"More than {limits.MAX_COMPLETIONS} choices were asked for.", param=param)
        return _Wanted(request, prompts, sampling, shapes, _names(request.rid, len(prompts), batch), param, batch)

    def _sampling(self, request: GenerateRequest, count: int) -> tuple[Sequence[SamplingParams], Sequence[OutputShape]]:
        given = request.sampling_params
        if not isinstance(given, list):
            params, shape = self._one(request, given or {}, "sampling_params")
            return [params] * count, [shape] * count
        if len(given) != count:
            raise BadRequest(
                f"'sampling_params' holds {len(given)} entries for {count} prompts.", param="sampling_params"
            )
        found = [self._one(request, one, f"sampling_params[{place}]") for place, one in enumerate(given)]
        if len({params.n for params, _ in found}) > 1:
            raise BadRequest("n must be the same for every prompt.", param="sampling_params")
        return [params for params, _ in found], [shape for _, shape in found]

    def _one(self, request: GenerateRequest, given: dict[str, Any], where: str) -> tuple[SamplingParams, OutputShape]:
        with renamed(lambda name: f"{where}.{_NATIVE_NAMES.get(name, name)}"):
            native = convert(given, NativeSampling)
            fields = SamplingFields(
                **{
                    name: getattr(native, _NATIVE_NAMES.get(name, name))
                    for name in SamplingFields.__struct_fields__
                    if hasattr(native, _NATIVE_NAMES.get(name, name))
                }
            )
            limit = native.max_new_tokens
            params = sampling_params(
                fields,
                self._services.engine.model_info,
                max_tokens=DEFAULT_MAX_NEW_TOKENS if limit is None else limit,
                logprobs=bool(request.return_logprob),
                top_logprobs=(request.top_logprobs_num or 0) if request.return_logprob else 0,
            )
        return params, _shape(native, where)

    def _requests(
        self,
        wanted: _Wanted,
        prompts: Sequence[Prompt],
        grammars: Sequence[GrammarSpec | None],
        context: RequestContext,
    ) -> list[GenerateReqInput]:
        request = wanted.request
        tenant = self._services.tenant(context, request.cache_salt)
        return [
            GenerateReqInput(
                text=prompt.text,
                input_ids=prompt.ids,
                sampling=sampling,
                add_special_tokens=True,
                grammar=grammar,
                tenant=tenant,
                priority=request.priority or 0,
                prompt_logprobs=bool(request.return_logprob) and _start(request) >= 0,
            )
            for prompt, sampling, grammar in zip(prompts, wanted.sampling, grammars, strict=True)
        ]

    async def _style(self, wanted: _Wanted, context: RequestContext) -> NativeStyle:
        request, engine = wanted.request, self._services.engine
        first: list[int] = []
        if request.return_logprob and _start(request) >= 0:
            first = [(await encode_prompt(engine.tokenizer, prompt) or [0])[0] for prompt in wanted.prompts]
        n = wanted.sampling[0].n
        return NativeStyle(
            tokenizer=engine.tokenizer,
            names=wanted.names,
            n=n,
            eos_token_ids=engine.model_info.eos_token_ids,
            started=context.started,
            listed=wanted.batch or n > 1,
            logprobs=bool(request.return_logprob),
            top_logprobs=request.top_logprobs_num or 0,
            logprob_text=bool(request.return_text_in_logprobs),
            logprob_start=_start(request),
            first_ids=first,
        )


def _start(request: GenerateRequest) -> int:
    """The first prompt token whose logprob is asked for; -1: none."""
    start = -1 if request.logprob_start_len is None else request.logprob_start_len
    if start < -1:
        raise BadRequest("logprob_start_len must be -1 or more.", param="logprob_start_len")
    return start


def _names(rid: str | list[str] | None, count: int, batch: bool) -> list[str]:
    """An id per prompt: the client's own, numbered in a batch, or fresh ones."""
    if rid is None:
        return [secrets.token_hex(16) for _ in range(count)]
    names = [rid] if isinstance(rid, str) else rid
    if any(not 0 < len(name) <= limits.MAX_RID for name in names):
        raise BadRequest(f"rid must have 1 to {limits.MAX_RID} characters.", param="rid")
    if isinstance(rid, str):
        return [f"{rid}_{place}" for place in range(count)] if batch else [rid]
    if len(names) != count or len(set(names)) != count:
        raise BadRequest("rid must hold one id of its own for every prompt.", param="rid")
    return names


def _shape(native: NativeSampling, where: str) -> OutputShape:
    given = [name for name in _SHAPES if getattr(native, name) is not None]
    if len(given) > 1:
        raise BadRequest(f"'{given[0]}' and '{given[1]}' exclude each other.", param=f"{where}.{given[1]}")
    if not given:
        return FREE
    name, value = given[0], getattr(native, given[0])
    param = f"{where}.{name}"
    if name in ("regex", "ebnf"):
        return parse_constraint("regex" if name == "regex" else "grammar", value, param)
    if isinstance(value, str):
        value = _json_object(value, param)
    if name == "structural_tag":
        return parse_structural_tag(value, param)
    return parse_constraint("json", value, param)


def _json_object(text: str, param: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise BadRequest(f"'{param}' must be a JSON object, or the text of one.", param=param)
    return value


def _idle() -> bytes:
    """SGLang's chunks have no form that says nothing, so silence is filled with comments only."""
    return COMMENT


async def _stream(
    generation: TextGeneration, answers: NativeAnswers, style: NativeStyle
) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(generation.outputs()) as outputs:
            async for prompt, output in outputs:
                index = await off_loop(len(output.prompt_logprobs) > MANY_LOGPROBS, answers.add, prompt, output)
                if output.text or output.token_ids or output.finish_reason is not None:
                    yield sse(answers.body(index, numbered=style.listed))
    except RequestAborted as exc:
        for index in answers.abort(exc.message):
            yield sse(answers.body(index, numbered=style.listed))
    yield DONE


async def _fold(generation: TextGeneration, answers: NativeAnswers) -> Any:
    try:
        async with aclosing(generation.outputs()) as outputs:
            async for prompt, output in outputs:
                await off_loop(len(output.prompt_logprobs) > MANY_LOGPROBS, answers.add, prompt, output)
    except RequestAborted as exc:
        answers.abort(exc.message)
    return answers.whole()
