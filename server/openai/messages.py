"""Checks a chat history before it is normalised (chat_templates.history) and rendered.

Strict where a mistake would change the prompt silently, lenient where real clients differ: extra keys are
ignored, an assistant's content may be null or absent, tool results may be parts or null and may lack an id.
Media parts are refused before anything could be fetched: this server takes text only. In the results of tools a
sentence takes their place.
"""

from __future__ import annotations

from typing import Any

from chat_templates.history import MEDIA_PARTS, REASONING_PARTS, TEXT_PARTS
from server import limits
from server.errors import BadRequest, invalid, quote

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def check_messages(messages: list[Any]) -> None:
    """Raise BadRequest with the path of the first thing that is wrong."""
    check_length(messages)
    for index, message in enumerate(messages):
        check_message(message, f"messages[{index}]")


def check_length(messages: list[Any]) -> None:
    if not messages:
        raise BadRequest("'messages' must hold at least one message.", param="messages")
    if len(messages) > limits.MAX_MESSAGES:
        raise BadRequest(f"'messages' holds more than {limits.MAX_MESSAGES} messages.", param="messages")


def check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise invalid(where, "an object is expected")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        got = quote(role) if isinstance(role, str) else "nothing of type string"
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)} is expected, got {got}")
    name = message.get("name")
    if name is not None and (not isinstance(name, str) or len(name) > limits.MAX_NAME):
        raise invalid(f"{where}.name", f"a string of at most {limits.MAX_NAME} characters is expected")
    call_id = message.get("tool_call_id")
    if call_id is not None and (not isinstance(call_id, str) or len(call_id) > limits.MAX_TOOL_CALL_ID):
        raise invalid(f"{where}.tool_call_id", "a string is expected")
    check_content(message.get("content"), role, f"{where}.content")
    if role == "assistant":
        _check_calls(message, where)


def check_content(content: Any, role: str, where: str) -> None:
    if isinstance(content, str):
        return
    if content is None:
        if role in ("system", "developer", "user"):
            raise invalid(where, f"a message of role {role} needs content")
    elif isinstance(content, list):
        if len(content) > limits.MAX_CONTENT_PARTS:
            raise invalid(where, f"more than {limits.MAX_CONTENT_PARTS} parts")
        for index, part in enumerate(content):
            _check_part(part, role, f"{where}[{index}]")
    elif role not in ("tool", "function") or not isinstance(content, dict):
        raise invalid(where, "a string or a list of content parts is expected")


def _check_part(part: Any, role: str, where: str) -> None:
    if not isinstance(part, dict):
        raise invalid(where, "an object is expected")
    kind = part.get("type")
    if not isinstance(kind, str):
        raise invalid(f"{where}.type", "a string is expected")
    if kind in TEXT_PARTS:
        if not isinstance(part.get("text"), str):
            raise invalid(f"{where}.text", "a string is expected")
    elif kind not in (*REASONING_PARTS, "refusal") and not (role in ("tool", "function") and kind in MEDIA_PARTS):
        raise invalid(f"{where}.type", f"{quote(kind)} is not supported, this model takes text parts only")


def _check_calls(message: dict[str, Any], where: str) -> None:
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise invalid(f"{where}.tool_calls", "a list is expected")
    if calls and len(calls) > limits.MAX_TOOL_CALLS:
        raise invalid(f"{where}.tool_calls", f"more than {limits.MAX_TOOL_CALLS} calls")
    for index, call in enumerate(calls or ()):
        place = f"{where}.tool_calls[{index}]"
        if not isinstance(call, dict):
            raise invalid(place, "an object is expected")
        call_id = call.get("id")
        if call_id is not None and (not isinstance(call_id, str) or len(call_id) > limits.MAX_TOOL_CALL_ID):
            raise invalid(f"{place}.id", "a string is expected")
        if call.get("type") == "custom":
            _check_custom(call.get("custom"), f"{place}.custom")
        else:
            _check_function(call.get("function"), f"{place}.function")
    legacy = message.get("function_call")
    if legacy is not None:
        _check_function(legacy, f"{where}.function_call")


def _check_custom(call: Any, where: str) -> None:
    if not isinstance(call, dict):
        raise invalid(where, "an object is expected")
    _check_name(call.get("name"), where)
    if not isinstance(call.get("input"), str):
        raise invalid(f"{where}.input", "a string is expected")


def _check_name(name: Any, where: str) -> None:
    if not isinstance(name, str) or not name or len(name) > limits.MAX_NAME:
        raise invalid(f"{where}.name", "a non-empty string is expected")


def _check_function(function: Any, where: str) -> None:
    if not isinstance(function, dict):
        raise invalid(where, "an object is expected")
    _check_name(function.get("name"), where)
    arguments = function.get("arguments")
    if arguments is not None and arguments != [] and not isinstance(arguments, (str, dict)):  # PHP's empty object
        raise invalid(f"{where}.arguments", "a string with a JSON object is expected")
