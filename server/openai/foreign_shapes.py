"""Chat requests that clients write in the shapes of the other APIs, as Cursor does whatever the endpoint.

Its agent sends the body of a Responses request here, its other modes chat bodies with tools in the flat form of
Responses or in Anthropic's, and calls and results as Anthropic's content blocks. Agents that pass on what MCP tools
return put lists of parts, or texts, into the list of parts. None of these shapes means anything else on chat, so they
are read for what they say; the answer is chat's, and errors name chat's fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server.body import convert
from server.errors import Unsupported
from server.openai.responses.input import read_items, to_messages
from server.openai.responses.tools import chat_choice, chat_kind, chat_tools, declared_tools
from server.openai.types.responses import ResponsesRequest

_NOT_HERE = ("previous_response_id", "conversation", "background", "prompt")
"""Fields of Responses that would change the answer and have no word on chat."""
_RESPONSES_FIELDS: Mapping[str, str] = MappingProxyType({"max_output_tokens": "max_completion_tokens"})
_BLOCKS = ("tool_use", "tool_result")


def in_chat_shape(body: dict[str, Any]) -> dict[str, Any]:
    """The body itself where it is of chat's shape, else what it says in chat's. Raises BadRequest."""
    if body.get("messages") is None and body.get("input") is not None:
        body = _from_responses(body)
    tools, messages = body.get("tools"), body.get("messages")
    if isinstance(tools, list) and any(_is_foreign(tool) for tool in tools):
        body = {**body, "tools": [_tool(tool) for tool in tools]}
    if isinstance(messages, list) and any(map(_has_loose_parts, messages)):
        messages = [_with_flat_parts(message) for message in messages]
        body = {**body, "messages": messages}
    if isinstance(messages, list) and any(map(_has_blocks, messages)):
        body = {**body, "messages": [plain for message in messages for plain in _messages(message)]}
    return body


def _from_responses(body: dict[str, Any]) -> dict[str, Any]:
    for name in _NOT_HERE:
        if body.get(name):
            raise Unsupported(name, f"'{name}' is not supported by this endpoint; use /v1/responses.")
    asked = convert(body, ResponsesRequest)
    items = read_items(asked.input, continues=False)
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            raise Unsupported(f"input[{index}]", "Items are sent whole here; stored ones are known to /v1/responses.")
    declared = declared_tools(asked.tools, items)
    found = {_RESPONSES_FIELDS.get(name, name): value for name, value in body.items() if name != "input"}
    found["messages"] = to_messages(asked.instructions, [], items)
    found["tools"] = chat_tools(declared)
    found["tool_choice"] = chat_choice(asked.tool_choice, declared)
    if asked.top_logprobs:
        found["logprobs"] = True
    shape = (asked.text or {}).get("format")
    if isinstance(shape, dict) and body.get("response_format") is None:
        flat = shape.get("type") == "json_schema" and "json_schema" not in shape
        found["response_format"] = {"type": "json_schema", "json_schema": shape} if flat else shape
    return found


def _is_foreign(tool: Any) -> bool:
    """Whether a tool is declared flat, in Anthropic's words, or without its type."""
    if not isinstance(tool, dict) or (chat_kind(tool) and tool.get("type") is not None):
        return False
    return tool.get("type") in ("function", "custom", None) and ("name" in tool or bool(chat_kind(tool)))


def _tool(tool: Any) -> Any:
    if not _is_foreign(tool):
        return tool
    if chat_kind(tool):
        return {**tool, "type": chat_kind(tool)}
    inner = {key: value for key, value in tool.items() if key not in ("type", "input_schema")}
    if "input_schema" in tool:
        return {"type": "function", "function": {**inner, "parameters": tool["input_schema"]}}
    kind = tool.get("type") or "function"
    return {"type": kind, kind: inner}


def _has_loose_parts(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(isinstance(part, (str, list)) for part in content)


def _with_flat_parts(message: Any) -> Any:
    """The message with its content as a list of parts: texts become parts, lists in lists are unpacked."""
    if not _has_loose_parts(message):
        return message
    parts, left = [], [message["content"]]
    while left:
        part = left.pop()
        if isinstance(part, list):
            left.extend(reversed(part))
        else:
            parts.append({"type": "text", "text": part} if isinstance(part, str) else part)
    return {**message, "content": parts}


def _is_block(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in _BLOCKS


def _has_blocks(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    return isinstance(content, list) and any(map(_is_block, content))


def _messages(message: Any) -> list[Any]:
    """The message, its blocks of calls as ``tool_calls``, those of results as messages of their own before it."""
    if not _has_blocks(message):
        return [message]
    blocks = [part for part in message["content"] if _is_block(part)]
    rest = [part for part in message["content"] if not _is_block(part)]
    calls = [_call(block) for block in blocks if block["type"] == "tool_use"]
    found = [_result(block, message) for block in blocks if block["type"] == "tool_result"]
    if calls:
        found.append({**message, "content": rest or None, "tool_calls": [*(message.get("tool_calls") or ()), *calls]})
    elif rest:
        found.append({**message, "content": rest})
    return found


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": block.get("input")}
    return {"id": block.get("id"), "type": "function", "function": function}


def _result(block: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, Any]:
    """A block in a tool's own message need not repeat which call it answers, or of which tool."""
    own = message if message.get("role") == "tool" else {}
    call_id = block.get("tool_use_id")
    said = {"tool_call_id": own.get("tool_call_id") if call_id is None else call_id, "content": block.get("content")}
    return {**own, "role": "tool", **said}
