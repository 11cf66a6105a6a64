"""Requests of the native routes, in the shapes of SGLang (/generate, parsing) and vLLM (/tokenize)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class GenerateRequest(msgspec.Struct, kw_only=True, frozen=True):
    """``text`` or ``input_ids``, one or many; ``sampling_params`` for all, or one per prompt."""

    text: str | list[Any] | None = None
    input_ids: list[Any] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    rid: str | list[str] | None = None
    model: str | UnsetType = UNSET
    priority: int | None = None
    cache_salt: str | None = None


class NativeSampling(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """SGLang's ``sampling_params``. A name that is not here is an error, as it is there."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    """Ignored: text is decoded as the tokenizer says."""
    regex: str | None = None
    ebnf: str | None = None
    json_schema: str | dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None


class AbortRequest(msgspec.Struct, kw_only=True, frozen=True):
    rid: str
    abort_all: bool | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    """``prompt``, ``messages`` with whatever else a chat request may hold, or llama.cpp's ``content``."""

    model: str | UnsetType = UNSET
    prompt: str | list[Any] | None = None
    messages: list[Any] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, frozen=True):
    tokens: list[Any]
    model: str | UnsetType = UNSET
    skip_special_tokens: bool | None = None


class ParseFunctionCallRequest(msgspec.Struct, kw_only=True, frozen=True):
    text: str
    tools: list[Any]
    tool_call_parser: str | None = None


class SeparateReasoningRequest(msgspec.Struct, kw_only=True, frozen=True):
    text: str
    reasoning_parser: str | None = None
