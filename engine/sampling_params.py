"""What a client may ask of the sampler, checked once at the edge and again in the engine.

Nothing here imports torch or touches I/O: the HTTP process, the scheduler and the tests share this file.
"""

from __future__ import annotations

import math

import msgspec

MAX_N = 128
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
GREEDY_EPSILON = 1e-5
"""Temperatures below this mean greedy: dividing logits by less overflows."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request's tokens are chosen. Defaults are OpenAI's.

    ``max_tokens=None`` means as many as the context leaves room for; TokenizerManager replaces it by a
    number before the request reaches the scheduler.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: bool = False
    top_logprobs: int = 0
    n: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON or self.top_k == 1


class InvalidParam(ValueError):
    """A sampling parameter that cannot be honoured; ``param`` is the field's wire name."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def _in_range(name: str, value: float, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidParam(name, f"{name} must be a number between {low:g} and {high:g}.")


def validate_sampling_params(params: SamplingParams, vocab_size: int) -> None:
    """Raise InvalidParam for the first field out of range. ``vocab_size`` is the width of the logits."""
    _in_range("temperature", params.temperature, 0.0, 2.0)
    _in_range("top_p", params.top_p, 0.0, 1.0)
    _in_range("min_p", params.min_p, 0.0, 1.0)
    _in_range("presence_penalty", params.presence_penalty, -2.0, 2.0)
    _in_range("frequency_penalty", params.frequency_penalty, -2.0, 2.0)
    _in_range("repetition_penalty", params.repetition_penalty, 0.01, 10.0)
    _in_range("n", params.n, 1, MAX_N)
    _in_range("top_logprobs", params.top_logprobs, 0, MAX_TOP_LOGPROBS)
    if params.top_p == 0.0:
        raise InvalidParam("top_p", "top_p must be greater than 0.")
    if params.top_k != -1 and not 0 <= params.top_k <= 1_000_000_000:
        raise InvalidParam("top_k", "top_k must be -1 or 0 (off) or a positive integer.")
    if params.max_tokens is not None and params.max_tokens < 1:
        raise InvalidParam("max_tokens", "max_tokens must be at least 1.")
    if params.min_tokens < 0 or (params.max_tokens is not None and params.min_tokens > params.max_tokens):
        raise InvalidParam("min_tokens", "min_tokens must be between 0 and max_tokens.")
    _validate_stops(params, vocab_size)
    _validate_logit_bias(params, vocab_size)


def _validate_stops(params: SamplingParams, vocab_size: int) -> None:
    if len(params.stop) > MAX_STOP_STRINGS:
        raise InvalidParam("stop", f"stop may hold at most {MAX_STOP_STRINGS} strings.")
    for text in params.stop:
        if not text or len(text) > MAX_STOP_LENGTH:
            raise InvalidParam("stop", f"each stop string must have 1 to {MAX_STOP_LENGTH} characters.")
    if len(params.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidParam("stop_token_ids", f"stop_token_ids may hold at most {MAX_STOP_TOKEN_IDS} ids.")
    for token in params.stop_token_ids:
        if not 0 <= token < vocab_size:
            raise InvalidParam("stop_token_ids", f"stop_token_ids must lie between 0 and {vocab_size - 1}.")


def _validate_logit_bias(params: SamplingParams, vocab_size: int) -> None:
    if len(params.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidParam("logit_bias", f"logit_bias may hold at most {MAX_LOGIT_BIAS} entries.")
    for token, bias in params.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise InvalidParam("logit_bias", f"logit_bias keys must lie between 0 and {vocab_size - 1}.")
        _in_range("logit_bias", bias, -100.0, 100.0)
