"""Ollama's requests and answers. Unknown fields are ignored, types are strict.

``messages``, ``tools``, ``format`` and ``options`` stay plain JSON here and are checked by server/ollama/fields.py.
"""

from __future__ import annotations

from typing import Any

import msgspec


class _AnswerRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    stream: bool | None = None
    """Streams unless false."""
    format: str | dict[str, Any] | None = None
    options: dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None


class ChatRequest(_AnswerRequest, kw_only=True, frozen=True):
    messages: list[Any] | None = None
    tools: list[Any] | None = None


class GenerateRequest(_AnswerRequest, kw_only=True, frozen=True):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None


class EmbedRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    input: str | list[str]
    dimensions: int | None = None


class OldEmbedRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    prompt: str


class ShowRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str | None = None
    name: str | None = None
    """The older spelling."""


class ChatBody(msgspec.Struct):
    model: str
    created_at: str
    message: dict[str, Any]
    done: bool


class GenerateBody(msgspec.Struct):
    model: str
    created_at: str
    response: str
    done: bool


class EmbedBody(msgspec.Struct):
    model: str
    embeddings: list[list[float]]


class OldEmbedBody(msgspec.Struct):
    embedding: list[float]


class ModelsBody(msgspec.Struct):
    models: list[dict[str, Any]]


class ShowBody(msgspec.Struct):
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]


class VersionBody(msgspec.Struct):
    version: str
