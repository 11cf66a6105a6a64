"""Requests of llama.cpp's own routes. Unknown fields are ignored, types are strict.

``prompt``, ``input_extra``, ``logit_bias`` and ``json_schema`` stay plain JSON here and are checked by
server/llama_cpp/fields.py and server/llama_cpp/handler.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class CompletionRequest(msgspec.Struct, kw_only=True, frozen=True):
    """``prompt``: a string, token ids, or a list of either, which is answered with a list."""

    prompt: str | list[Any] | None = None
    model: str | UnsetType = UNSET
    stream: bool | None = None
    n_predict: int | None = None
    """-1: as many as there is room for. 0: only the prompt is computed, for the prefix cache."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    logit_bias: list[Any] | dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    n_probs: int | None = None
    n_indent: int | None = None
    t_max_predict_ms: float | None = None
    return_tokens: bool | None = None
    response_fields: list[str] | None = None


class InfillRequest(CompletionRequest, kw_only=True, frozen=True):
    """``prompt``: what stands between the prefix and the cursor."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[Any] | None = None


class TemplateBody(msgspec.Struct):
    prompt: str


class PropsBody(msgspec.Struct):
    default_generation_settings: dict[str, Any]
    total_slots: int
    model_path: str
    chat_template: str
    modalities: dict[str, bool]
