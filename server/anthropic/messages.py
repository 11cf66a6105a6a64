"""``system`` and ``messages`` of /v1/messages as chat messages.

Text blocks that follow each other are joined by an empty line, messages of one role that follow each other become one,
as Anthropic does it. Tool results come before the text of their message; media in them is not seen by the model, which
is told so. A last message of the assistant is the beginning of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from chat_templates.history import MEDIA_PARTS, media_note
from server import limits
from server.errors import BadRequest, invalid, quote
from server.openai.messages import check_length

_GAP = "\n\n"


def read_conversation(system: Any, messages: list[Any]) -> list[dict[str, Any]]:
    """Chat messages. Raises BadRequest with the path of the first thing that is wrong."""
    check_length(messages)
    reader = _Reader()
    if system:
        reader.found.append({"role": "system", "content": _text(system, "system")})
    for index, message in enumerate(messages):
        reader.message(message, f"messages[{index}]")
    return reader.found


def is_prefill(messages: list[dict[str, Any]]) -> bool:
    """Whether the answer goes on from the last message."""
    last = messages[-1]
    return last["role"] == "assistant" and bool(last["content"]) and not last.get("tool_calls")


def check_answerable(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises BadRequest where calls wait for their results."""
    if messages[-1].get("tool_calls"):
        raise BadRequest("The last message calls tools; their tool_result blocks must follow.", param="messages")


class _Reader:
    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self._calls: set[str] = set()

    def message(self, message: Any, where: str) -> None:
        if not isinstance(message, dict):
            raise invalid(where, "an object is expected")
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant", "system"):
            raise invalid(f"{where}.role", "'user' or 'assistant' is expected")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}] if content else []
        if not isinstance(content, list):
            raise invalid(f"{where}.content", "a string or a list of content blocks is expected")
        if len(content) > limits.MAX_CONTENT_PARTS:
            raise invalid(f"{where}.content", f"more than {limits.MAX_CONTENT_PARTS} blocks")
        blocks = [_block(block, f"{where}.content[{index}]") for index, block in enumerate(content)]
        if role == "assistant":
            self._assistant(blocks, f"{where}.content")
        else:
            self._user(role, blocks, f"{where}.content")

    def _user(self, role: str, blocks: list[dict[str, Any]], where: str) -> None:
        texts = []
        for index, block in enumerate(blocks):
            place = f"{where}[{index}]"
            if block["type"] == "tool_result" and role == "user":
                self._result(block, place)
            else:
                texts.append(_words(block, place))
        if texts or not blocks:
            self._append(role, _GAP.join(texts))

    def _result(self, block: dict[str, Any], where: str) -> None:
        call_id = _string(block, "tool_use_id", where)
        if call_id not in self._calls:
            raise invalid(f"{where}.tool_use_id", f"no tool_use block has the id {quote(call_id)}")
        text = _text(block.get("content") or "", f"{where}.content", media_note)
        if block.get("is_error") is True and not text.lower().startswith("error"):
            text = f"Error: {text}" if text else "Error"
        self.found.append({"role": "tool", "tool_call_id": call_id, "content": text})

    def _assistant(self, blocks: list[dict[str, Any]], where: str) -> None:
        texts, thoughts, calls = [], [], []
        for index, block in enumerate(blocks):
            place, kind = f"{where}[{index}]", block["type"]
            if kind == "text":
                texts.append(_string(block, "text", place))
            elif kind == "thinking":
                thoughts.append(_string(block, "thinking", place))
            elif kind == "tool_use":
                calls.append(self._call(block, place))
            elif kind != "redacted_thinking":
                raise _refused(block, place)
        message = self._append("assistant", _GAP.join(text for text in texts if text))
        if any(thoughts):
            earlier = message.get("reasoning_content", "")
            message["reasoning_content"] = _GAP.join(filter(None, (earlier, *thoughts)))
        if calls:
            message["tool_calls"] = [*message.get("tool_calls", ()), *calls]

    def _call(self, block: dict[str, Any], where: str) -> dict[str, Any]:
        call_id, name = _string(block, "id", where), _string(block, "name", where)
        if not 0 < len(name) <= limits.MAX_NAME or not 0 < len(call_id) <= limits.MAX_TOOL_CALL_ID:
            raise invalid(where, "a name and an id are expected, neither empty nor overlong")
        given = block.get("input") or {}  # null, and in PHP the empty object is []
        if not isinstance(given, dict):
            raise invalid(f"{where}.input", "an object is expected")
        self._calls.add(call_id)
        if len(self._calls) > limits.MAX_MESSAGES:
            raise invalid(where, f"more than {limits.MAX_MESSAGES} tool_use blocks")
        arguments = orjson.dumps(given).decode()
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _append(self, role: str, content: str) -> dict[str, Any]:
        """A new message, or the last one with more content, where both have the same role."""
        last = self.found[-1] if self.found else None
        if last is None or last["role"] != role:
            last = {"role": role, "content": content}
            self.found.append(last)
        elif content:
            last["content"] = _GAP.join(filter(None, (last["content"], content)))
        return last


def _block(block: Any, where: str) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise invalid(where, "an object is expected")
    if not isinstance(block.get("type"), str):
        raise invalid(f"{where}.type", "a string is expected")
    return block


def _text(value: Any, where: str, media: Callable[[str], str] | None = None) -> str:
    """A string, or text blocks. media: what stands in place of an image or document that is no text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or len(value) > limits.MAX_CONTENT_PARTS:
        raise invalid(where, f"a string or a list of at most {limits.MAX_CONTENT_PARTS} text blocks is expected")
    texts = []
    for index, item in enumerate(value):
        place = f"{where}[{index}]"
        texts.append(_words(_block(item, place), place, media))
    return _GAP.join(texts)


def _words(block: Mapping[str, Any], where: str, media: Callable[[str], str] | None = None) -> str:
    """The text of a block: text, a document that is text, a result of a search, the name of a tool that one found."""
    kind = block["type"]
    if kind == "text":
        return _string(block, "text", where)
    if kind == "tool_reference":
        return _string(block, "tool_name", where)
    if kind == "search_result":
        return _titled(block, _text(block.get("content"), f"{where}.content"))
    source = block.get("source")
    if kind == "document" and isinstance(source, dict):
        if source.get("type") == "text":
            return _titled(block, _string(source, "data", f"{where}.source"))
        if source.get("type") == "content":
            return _titled(block, _text(source.get("content"), f"{where}.source.content"))
    if media is not None and kind in MEDIA_PARTS:
        return media(kind)
    raise _refused(block, where)


def _titled(block: Mapping[str, Any], text: str) -> str:
    title = block.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text


def _string(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise invalid(f"{where}.{key}", "a string is expected")
    return value


def _refused(block: Mapping[str, Any], where: str) -> BadRequest:
    return invalid(f"{where}.type", f"{quote(block['type'])} is not supported here, this model takes text only")
