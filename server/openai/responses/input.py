"""``input`` of /v1/responses, a string or a list of items, as chat messages.

Reasoning, message and calls of one assistant turn become one assistant message, which is what chat templates know.
Items of hosted tools are refused by name: their content would be missing from the prompt. References to stored items
are replaced by what they name (server/openai/responses/items.py) before they become messages. Custom tool calls
become ordinary calls with one argument, ``input``.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from server import limits
from server.custom_tools import as_arguments
from server.errors import BadRequest, invalid, quote
from server.openai.messages import check_content, check_message
from server.openai.responses.tools import qualified

ROLES = ("user", "assistant", "system", "developer")
_ID_PREFIXES = MappingProxyType(
    {"message": "msg_", "reasoning": "rs_", "function_call": "fc_", "custom_tool_call": "ctc_"}
)
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")


def read_items(value: str | list[Any] | None, *, continues: bool) -> list[dict[str, Any]]:
    """The items that a request brings, each with an id, types and fields checked. continues: there are earlier ones,
    so that it may bring none."""
    if value is None and not continues:
        raise BadRequest("Missing required parameter: 'input'.", param="input", code="missing_required_parameter")
    value = [] if value is None else value
    if isinstance(value, str):
        value = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": value}]}]
    if len(value) > limits.MAX_MESSAGES:
        raise BadRequest(f"'input' holds more than {limits.MAX_MESSAGES} items.", param="input")
    return [_item(item, f"input[{index}]") for index, item in enumerate(value)]


def _item(item: Any, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid(where, "an object is expected")
    kind = item.get("type") or ("message" if "role" in item else "item_reference" if "id" in item else None)
    if kind == "message":
        _check_message(item, where)
    elif kind == "reasoning":
        reasoning_text(item, where)
    elif kind in _CALLS:
        _check_call(item, where, "arguments" if kind == "function_call" else "input")
    elif kind in _OUTPUTS:
        if item.get("call_id") is not None:
            _string(item, "call_id", where)
        check_content(item.get("output"), "tool", f"{where}.output")
    elif kind == "item_reference":
        _string(item, "id", where)
    elif kind == "additional_tools":
        if not isinstance(item.get("tools"), list):
            raise invalid(f"{where}.tools", "a list is expected")
    else:
        got = quote(kind) if isinstance(kind, str) else "nothing"
        raise invalid(f"{where}.type", f"items of this type are not supported, got {got}")
    item_id = item.get("id")
    if not isinstance(item_id, str) or not item_id:
        item_id = _ID_PREFIXES.get(kind, "item_") + secrets.token_hex(16)
    return {**item, "type": kind, "id": item_id}


def _check_message(item: dict[str, Any], where: str) -> None:
    role = item.get("role")
    if role not in ROLES:
        got = quote(role) if isinstance(role, str) else "nothing of type string"
        raise invalid(f"{where}.role", f"one of {', '.join(ROLES)} is expected, got {got}")
    check_message({"role": role, "content": item.get("content")}, where)


def _check_call(item: dict[str, Any], where: str, body: str) -> None:
    _string(item, "call_id", where)
    _string(item, "name", where)
    if not isinstance(item.get(body), (str, dict) if body == "arguments" else str):
        raise invalid(f"{where}.{body}", "a string is expected")


def _string(item: dict[str, Any], key: str, where: str) -> None:
    value = item.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= limits.MAX_TOOL_CALL_ID:
        raise invalid(f"{where}.{key}", f"a string of 1 to {limits.MAX_TOOL_CALL_ID} characters is expected")


def reasoning_text(item: dict[str, Any], where: str = "input") -> str:
    """What a reasoning item says: its content, else its summary. ``encrypted_content`` cannot be read by anybody."""
    for key in ("content", "summary"):
        parts = item.get(key)
        if parts is None:
            continue
        if not isinstance(parts, list):
            raise invalid(f"{where}.{key}", "a list is expected")
        texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
        if not all(isinstance(text, str) for text in texts):
            raise invalid(f"{where}.{key}", "parts with a text are expected")
        if texts:
            return "\n\n".join(text for text in texts if text)
    return ""


def to_messages(instructions: str | None, history: Sequence[dict[str, Any]], items: Sequence[dict[str, Any]]) -> Any:
    """Chat messages of a stored history and the items of this request. Raises BadRequest for a result without a
    call."""
    messages = _Messages()
    if instructions:
        messages.plain("system", instructions)
    for item in history:
        messages.add(item, "input")
    for index, item in enumerate(items):
        messages.add(item, f"input[{index}]")
    if not history and not items:
        raise BadRequest("'input' must hold at least one item.", param="input")
    if len(messages.found) > limits.MAX_MESSAGES:
        raise BadRequest(f"The conversation holds more than {limits.MAX_MESSAGES} messages.", param="input")
    return messages.found


class _Messages:
    """Collects messages; reasoning, text and calls that follow each other go into one assistant message."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._turn: dict[str, Any] | None = None
        self._calls: dict[str, str] = {}
        self._waiting: dict[str, str] = {}

    def plain(self, role: str, content: Any) -> None:
        self._turn = None
        self.found.append({"role": role, "content": content})

    def add(self, item: dict[str, Any], where: str) -> None:
        kind = item["type"]
        if kind in _OUTPUTS:
            self._output(item, where)
        elif kind in _CALLS:
            self._call(item)
        elif kind == "additional_tools":
            return  # read with the request's own
        elif kind == "reasoning":
            self._reasoning(reasoning_text(item))
        elif item["role"] != "assistant":
            self.plain(item["role"], item["content"])
        else:
            self._text(item.get("content"))

    def _assistant(self, *, fresh: bool) -> dict[str, Any]:
        if self._turn is None or fresh:
            self._turn = {"role": "assistant", "content": None}
            self.found.append(self._turn)
        return self._turn

    def _reasoning(self, text: str) -> None:
        if text:
            turn = self._turn
            said = turn is not None and (turn["content"] is not None or "tool_calls" in turn)
            turn = self._assistant(fresh=said)
            turn["reasoning_content"] = "\n\n".join(filter(None, (turn.get("reasoning_content"), text)))

    def _text(self, content: Any) -> None:
        turn = self._turn
        said = turn is not None and (turn["content"] is not None or "tool_calls" in turn)
        self._assistant(fresh=said)["content"] = content

    def _call(self, item: dict[str, Any]) -> None:
        arguments = item.get("arguments")
        if item["type"] == "custom_tool_call":
            arguments = as_arguments(item["input"])
        function = {"name": qualified(item.get("namespace"), item["name"]), "arguments": arguments}
        turn = self._assistant(fresh=False)
        turn.setdefault("tool_calls", []).append({"id": item["call_id"], "type": "function", "function": function})
        if len(turn["tool_calls"]) > limits.MAX_TOOL_CALLS:
            raise BadRequest(f"'input' holds more than {limits.MAX_TOOL_CALLS} calls in a row.", param="input")
        self._calls[item["call_id"]] = function["name"]
        self._waiting[item["call_id"]] = function["name"]

    def _output(self, item: dict[str, Any], where: str) -> None:
        call_id = item.get("call_id")
        if call_id is None:
            call_id = self._first_waiting(item)
        if call_id not in self._calls:
            shown = "of that name, or any," if call_id is None else f"with call_id {quote(call_id)}"
            raise BadRequest(f"No tool call found for function call output {shown}.", param=f"{where}.call_id")
        self._waiting.pop(call_id, None)
        self._turn = None
        self.found.append({"role": "tool", "tool_call_id": call_id, "content": item.get("output")})

    def _first_waiting(self, item: dict[str, Any]) -> str | None:
        """The call that an output without ``call_id`` answers: the first one without a result, of its name if it says
        one."""
        name = qualified(item.get("namespace"), item.get("name"))
        return next((call_id for call_id, called in self._waiting.items() if name in (None, called)), None)
