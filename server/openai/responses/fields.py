"""Our answer to fields of POST /v1/responses that we know and do not implement. docs/api.md prints these tables."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server.errors import Unsupported
from server.fields import first_refused
from server.openai.fields import refuse_unsupported

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "access_programs": "there are none",
        "background_options": "there is one completion window, soonest",
        "client_metadata": "not kept",
        "context_management": "nothing is compacted; too long a context is a 400",
        "image": "no images are read",
        "include": "only message.output_text.logprobs changes the answer",
        "max_tool_calls": "echoed; it counts hosted tools, of which there are none",
        "metadata": "checked, kept with the response",
        "prompt_cache_key": "echoed; the prefix cache needs no hint",
        "prompt_cache_options": "the prefix cache needs no hint; prewarm is refused",
        "prompt_cache_retention": "the prefix cache needs no hint",
        "safety_identifier": "echoed, not kept elsewhere",
        "service_tier": "there is one tier",
        "stream_options": "no padding is sent",
        "truncation": "nothing is dropped; too long a context is a 400",
        "user": "checked, echoed",
    }
)

REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "prompt": (),
        "messages": (),
        "response_format": (),
        "max_tokens": (),
        "max_completion_tokens": (),
        "n": (1,),
        "logprobs": (False,),
        "previous_input_messages": ([],),
        "enable_response_messages": (False,),
    }
)
"""Fields that would change the answer, with the values that mean "off"; those of chat are refused here too."""

_INSTEAD: Mapping[str, str] = MappingProxyType(
    {
        "messages": "use 'input'",
        "response_format": "use 'text.format'",
        "max_tokens": "use 'max_output_tokens'",
        "max_completion_tokens": "use 'max_output_tokens'",
        "logprobs": "use 'include' with 'message.output_text.logprobs'",
    }
)


def refuse_fields(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for the first field that we cannot honour."""
    name = first_refused(body, REFUSED)
    if name is not None:
        hint = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise Unsupported(name, f"'{name}' is not supported by this endpoint{hint}.")
    options = body.get("prompt_cache_options")
    if isinstance(options, dict) and options.get("prewarm"):
        raise Unsupported("prompt_cache_options.prewarm", "This endpoint answers every request; it prepares no caches.")
    refuse_unsupported(body)
