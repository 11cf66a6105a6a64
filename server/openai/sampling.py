"""From request fields to engine.sampling_params.SamplingParams; the one admission validator of every endpoint."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from engine.messages import ModelInfo
from engine.sampling_params import SamplingParams, validate_sampling_params
from server import limits
from server.errors import BadRequest
from server.openai.types.common import SamplingFields
from server.param_names import renamed

_SALT = re.compile(r"[A-Za-z0-9_-]{1,%d}" % limits.MAX_CACHE_SALT)  # noqa: UP031 (braces of the regex)
_INT64 = 1 << 63
_SMALLEST_TOP_P = 1e-6
"""What 0 means: the most likely token alone."""


def sampling_params(
    request: SamplingFields,
    info: ModelInfo,
    *,
    max_tokens: int | None = None,
    max_tokens_param: str = "max_tokens",
    logprobs: bool = False,
    top_logprobs: int = 0,
    n: int | None = None,
) -> SamplingParams:
    """Validated parameters. ``max_tokens`` above the context is cut to it, never refused: clients send 32000.
    ``n``: instead of the request's own.

    Raises InvalidParam or BadRequest naming the field.
    """
    limit = _max_tokens(max_tokens, max_tokens_param, info)
    min_tokens = request.min_tokens or 0
    if request.min_tokens is not None and request.min_tokens > info.context_length:
        raise BadRequest(f"min_tokens is larger than the context of {info.context_length} tokens.", param="min_tokens")
    given = _given(request)
    if n is not None:
        given["n"] = n
    params = SamplingParams(
        max_tokens=limit,
        min_tokens=min_tokens,
        stop=_stops(request.stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logit_bias=_logit_bias(request.logit_bias),
        seed=_seed(request.seed),
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        **given,
    )
    with renamed(partial(_as_given, request)):
        validate_sampling_params(params, info.vocab_size)
    return params


_PLAIN = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "n",
    "ignore_eos",
    "skip_special_tokens",
)


def _given(request: SamplingFields) -> dict[str, Any]:
    """Fields that are passed on as they are; null is the default."""
    values = ((name, getattr(request, name)) for name in _PLAIN)
    given = {name: value for name, value in values if value is not None}
    if request.repeat_penalty is not None:
        given.setdefault("repetition_penalty", request.repeat_penalty)
    if given.get("top_p") == 0:
        given["top_p"] = _SMALLEST_TOP_P
    return given


def _as_given(request: SamplingFields, param: str) -> str:
    return "repeat_penalty" if param == "repetition_penalty" and request.repetition_penalty is None else param


def _max_tokens(value: int | None, param: str, info: ModelInfo) -> int | None:
    if value is None:
        return None
    if not 1 <= value <= limits.MAX_OUTPUT_TOKENS:
        allowed = f"between 1 and {limits.MAX_OUTPUT_TOKENS}, or absent for as many as there is room for"
        raise BadRequest(f"{param} must be {allowed}.", param=param)
    return min(value, info.context_length)


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Empty ones, which forms of clients send where nobody filled them in, are none."""
    given = [stop] if isinstance(stop, str) else stop or ()
    return tuple(text for text in given if text)


def _seed(seed: int | None) -> int | None:
    if seed is not None and not -_INT64 <= seed < _INT64:
        raise BadRequest("seed must be a 64-bit integer.", param="seed")
    return seed


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float]:
    if not bias:
        return {}
    found: dict[int, float] = {}
    for key, value in bias.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise BadRequest("logit_bias keys must be token ids.", param="logit_bias")
        found[int(key)] = value
    return found


def check_common(request: SamplingFields) -> None:
    """Fields that do not reach the sampler but have rules of their own."""
    if request.stream_options is not None and not request.stream:
        raise BadRequest("stream_options is only allowed when stream is true.", param="stream_options")
    check_user(request.user)
    check_cache_salt(request.cache_salt)
    check_priority(request.priority)
    check_metadata(request.metadata)


def check_priority(priority: int | None) -> None:
    if priority is not None and not -1000 <= priority <= 1000:
        raise BadRequest("priority must be an integer between -1000 and 1000.", param="priority")


def check_user(user: str | None) -> None:
    if user is not None and len(user) > limits.MAX_USER_CHARS:
        raise BadRequest(f"user is longer than {limits.MAX_USER_CHARS} characters.", param="user")


def check_cache_salt(salt: str | None) -> None:
    if salt is not None and not _SALT.fullmatch(salt):
        raise BadRequest(
            f"cache_salt must be 1 to {limits.MAX_CACHE_SALT} characters of A-Z a-z 0-9 _ -.", param="cache_salt"
        )


def check_metadata(metadata: dict[str, str] | None) -> None:
    entries = metadata or {}
    if len(entries) > limits.MAX_METADATA_ENTRIES:
        raise BadRequest(f"metadata holds more than {limits.MAX_METADATA_ENTRIES} entries.", param="metadata")
    for key, value in entries.items():
        if len(key) > limits.MAX_METADATA_KEY or len(value) > limits.MAX_METADATA_VALUE:
            raise BadRequest("a metadata key or value is too long.", param="metadata")
