"""POST /v1/chat/completions: the request. Answers are written by server/openai/chat_chunks.py as dicts.

``messages``, ``tools``, ``tool_choice`` and ``response_format`` stay plain JSON here: they come in more shapes
than a type can say, and are checked by server/openai/messages.py and tools.py with paths in the errors.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from server.openai.types.common import SamplingFields


class ChatCompletionRequest(SamplingFields, kw_only=True, frozen=True):
    messages: list[Any]
    model: str | UnsetType = UNSET
    """Omitted: the served model. null is refused."""
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking: dict[str, Any] | bool | None = None
    reasoning: Any = None
    """OpenRouter's object; anything else is ignored."""
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None
    reasoning_format: str | None = None
    return_token_ids: bool | None = None


class ChatCompletionBody(msgspec.Struct):
    """Only for the OpenAPI document: what a whole answer looks like."""

    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: dict[str, Any]
