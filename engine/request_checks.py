"""What a request must satisfy before it may cross into the engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import msgspec

from engine.client import EngineError
from engine.messages import DecodeParams, GenerateReqInput, ModelInfo, TokenizedGenerateReqInput
from engine.sampling_params import InvalidParam, SamplingParams, validate_sampling_params

MAX_CHARS_PER_TOKEN = 256
"""No tokenizer here has tokens of more characters on average: a longer text cannot fit, whatever it says."""
SPARSE_CHARS_PER_TOKEN = 8
"""Text has 3 to 5; one that is so much longer than the context is nearly always too long."""
CUT_TOKENS = 256
"""So many tokens more may the beginning of a text have than they are in all of it, because a word was cut."""
SEED_BITS = 63


def check_sampling(params: SamplingParams, vocab_size: int) -> None:
    """Raise EngineError (400) where a parameter is out of range."""
    try:
        validate_sampling_params(params, vocab_size)
    except InvalidParam as error:
        raise EngineError(str(error), status=400, code="invalid_value", param=error.param) from None


def check_ids(ids: Sequence[int], vocab_size: int) -> None:
    """Raise EngineError (400) for an id outside the model's vocabulary (the width of its logits)."""
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise EngineError(
            f"Token ids must lie between 0 and {vocab_size - 1}.", status=400, code="invalid_value", param="prompt"
        )


def length_limit(info: ModelInfo) -> int:
    """Tokens that prompt and completion may have together: the context, or the KV memory where that is less."""
    return min(info.context_length, info.kv_capacity_tokens) if info.kv_capacity_tokens else info.context_length


def text_limit(text: str, info: ModelInfo) -> None:
    """Refuse a text that cannot fit before it is encoded."""
    limit = length_limit(info)
    if len(text) > limit * MAX_CHARS_PER_TOKEN:
        raise _too_long(limit, f"your prompt of {len(text)} characters does not fit")


def encode_fitting(text: str, encode: Callable[[str], list[int]], info: ModelInfo) -> list[int]:
    """``encode(text)``. Raises EngineError (400) where a part of it alone is too long: millions of characters take
    seconds, of which a prompt that cannot fit is to cost but few."""
    limit = length_limit(info)
    size = limit * SPARSE_CHARS_PER_TOKEN
    while size < len(text):
        if len(encode(text[:size])) > limit + CUT_TOKENS:
            raise _too_long(limit, f"your prompt of {len(text)} characters does not fit")
        size *= 4
    return encode(text)


def check_length(prompt_tokens: int, max_tokens: int | None, info: ModelInfo) -> int:
    """How many tokens the request may generate: what it asked for, cut to what its prompt leaves.

    Raises EngineError (400): ``context_length_exceeded`` where the prompt leaves no room for one token, and
    where it is empty.
    """
    if prompt_tokens == 0:
        raise EngineError(
            "The prompt must contain at least one token.", status=400, code="invalid_value", param="prompt"
        )
    limit = length_limit(info)
    room = limit - prompt_tokens
    if room < 1:
        raise _too_long(limit, f"your prompt has {prompt_tokens} tokens and leaves no room for a completion")
    return room if max_tokens is None else min(max_tokens, room)


def _too_long(limit: int, but: str) -> EngineError:
    message = f"This model's maximum context length is {limit} tokens. However, {but}."
    return EngineError(message, status=400, code="context_length_exceeded", param="messages")


def choice_request(
    request: GenerateReqInput, rid: str, index: int, input_ids: Sequence[int], max_tokens: int
) -> TokenizedGenerateReqInput:
    """One of the ``n`` choices as the scheduler takes it: its own seed, a number for max_tokens, n = 1."""
    params = request.sampling
    seed = secrets.randbits(SEED_BITS) if params.seed is None else (params.seed + index) % (1 << SEED_BITS)
    sampling = msgspec.structs.replace(
        params, n=1, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens), seed=seed
    )
    return TokenizedGenerateReqInput(
        rid=rid,
        input_ids=tuple(input_ids),
        sampling=sampling,
        decode=DecodeParams(
            skip_special_tokens=params.skip_special_tokens,
            keep_special=request.keep_special,
            stop=params.stop,
            stop_after=request.stop_after,
            stop_opener=request.stop_opener,
            min_tokens=sampling.min_tokens,
        ),
        grammar=request.grammar,
        tenant=request.tenant,
        priority=request.priority,
        prompt_logprobs=request.prompt_logprobs,
    )
