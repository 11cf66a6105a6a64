"""Ollama's fields in the words that the endpoints share: options, format, think, messages; and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from server.constraints import FREE, OutputShape, parse_constraint
from server.errors import invalid
from server.openai.messages import check_messages
from server.openai.types.common import SamplingFields
from server.sampling_options import option_name, read_options

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "keep_alive": "the model stays loaded",
        "shift": "nothing is dropped; too long a context is a 400",
        "truncate": "nothing is dropped; too long a context is a 400",
    }
)
REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"images": ([],), "context": ([],), "template": ("",), "adapters": ([], {}), "modelfile": ("",)}
)
"""Fields that would change the answer, with the values that mean "off". null is always off."""

_OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "temperature": "temperature",
        "top_p": "top_p",
        "top_k": "top_k",
        "min_p": "min_p",
        "presence_penalty": "presence_penalty",
        "frequency_penalty": "frequency_penalty",
        "repeat_penalty": "repetition_penalty",
        "seed": "seed",
        "num_predict": "max_tokens",
        "stop": "stop",
    }
)
"""Options that are read; all others (num_ctx, num_gpu, mirostat, …) are ignored."""
EFFORTS = ("low", "medium", "high", "max")
ROLES = ("system", "user", "assistant", "tool")


def sampling_fields(options: Mapping[str, Any] | None) -> SamplingFields:
    """Raises BadRequest naming the option."""
    return read_options(options or {}, _OPTIONS)


def option_path(param: str) -> str:
    """A sampling field's path in chat's form as the option that said it."""
    name = option_name(param, _OPTIONS)
    return f"options.{name}" if name else param


def output_shape(given: str | dict[str, Any] | None) -> OutputShape:
    """``format``: "json", or a JSON schema."""
    if given is None or given == "":
        return FREE
    if given == "json":
        return OutputShape(document={"type": "object"}, param="format")
    if isinstance(given, str):
        raise invalid("format", "'json' or a JSON schema is expected")
    return parse_constraint("json", given, "format")


def read_think(think: bool | str | None) -> tuple[bool | None, str | None]:
    """(whether the model is asked to think, the template's effort)."""
    if isinstance(think, str):
        if think not in EFFORTS:
            raise invalid("think", f"a boolean or one of {', '.join(EFFORTS)} is expected")
        return True, think
    return think, None


def chat_messages(messages: Sequence[Any]) -> list[dict[str, Any]]:
    """Messages in chat's form. Raises BadRequest with the path of the first thing that is wrong."""
    found = [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]
    check_messages(found)
    return found


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise invalid(where, "an object is expected")
    if message.get("role") not in ROLES:
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)} is expected")
    if message.get("images"):
        raise invalid(f"{where}.images", "images are not supported, this model takes text only")
    content = message.get("content")
    if not isinstance(content, str | None):
        raise invalid(f"{where}.content", "a string is expected")
    found = {**message, "content": content or ""}
    if isinstance(message.get("thinking"), str):
        found["reasoning_content"] = message["thinking"]
    if message["role"] == "tool" and message.get("name") is None:
        found["name"] = message.get("tool_name")
    return found
