"""Request fields that several endpoints share. Unknown fields are ignored; types are checked strictly.

Strict means what JSON means: ``true`` is no integer, ``"1"`` is no number, 1.5 is no integer.
"""

from __future__ import annotations

from typing import Any

import msgspec


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that decides how tokens are drawn, OpenAI's fields and those of vLLM and SGLang."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    repeat_penalty: float | None = None
    """The same, as LM Studio's and llama.cpp's clients write it."""
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    structured_outputs: dict[str, Any] | None = None
