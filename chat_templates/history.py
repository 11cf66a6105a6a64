"""One normaliser of conversations, before any template sees them.

Clients send null, missing and list contents, arguments as text, objects or broken JSON, results in any order
and under several names for their id, the ``developer`` role, and the legacy ``functions`` fields. Templates
expect one shape. ``normalise`` is idempotent and raises only HistoryError.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from chat_templates.errors import HistoryError

Message = dict[str, Any]

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
TEXT_PARTS = ("text", "input_text", "output_text")
REASONING_PARTS = ("thinking", "reasoning", "reasoning_text")
MEDIA_PARTS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("image", "image_url", "input_image"), "image"),
        **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
        **dict.fromkeys(("video", "video_url", "input_video"), "video"),
        **dict.fromkeys(("file", "input_file", "document"), "file"),
    }
)
"""Types of content parts that are no text, and what they hold."""
RAW_ARGUMENTS = "raw_arguments"
"""Arguments that are no JSON object are shown to the model under this key: nothing is lost, nothing raises."""
MAX_DEPTH = 64
MAX_ENCODED = 3
"""How often arguments may be encoded as JSON: some clients encode the text that they were sent once more."""


def normalise(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Messages of the roles system, user, assistant, tool with exactly the keys that templates read.

    content is a str; in place of media in a tool's result stands a sentence. An assistant's ``tool_calls`` are
    ``{id, type, function: {name, arguments: dict}}``; each ``tool`` message has ``tool_call_id`` and ``name`` and
    stands in the order of the calls; reasoning is in ``reasoning_content``.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise HistoryError("messages must be a non-empty list")
    plain = [_message(raw, f"messages.{index}") for index, raw in enumerate(messages)]
    _fill_call_ids(plain)
    return _merge_leading_system(_order_results(plain))


def normalise_tools(tools: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Function tools as ``{type, function: {name, description, parameters}}`` in that order of keys.

    Tools of other types (web search and the like) are dropped; a bare function (legacy ``functions``) is wrapped.
    """
    shaped = []
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise HistoryError("a tool must be an object", param=f"tools.{index}")
        function = tool.get("function", tool if "name" in tool and tool.get("type") in (None, "function") else None)
        if not isinstance(function, Mapping):
            continue
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise HistoryError("a function tool needs a name", param=f"tools.{index}.function.name")
        shaped.append({"type": "function", "function": _function(function)})
    return shaped


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    shaped: dict[str, Any] = {"name": function["name"]}
    if isinstance(function.get("description"), str):
        shaped["description"] = function["description"]
    parameters = function.get("parameters")
    shaped["parameters"] = parameters if isinstance(parameters, Mapping) else {"type": "object", "properties": {}}
    return shaped


def parse_arguments(arguments: Any) -> dict[str, Any]:
    """An object from whatever stands in history: text, object, nothing, or broken text (kept under RAW_ARGUMENTS). An
    empty list is an empty object: languages that do not tell the two apart write it so."""
    if isinstance(arguments, list) and not arguments:
        return {}
    if isinstance(arguments, Mapping):
        return dict(arguments)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return {}
    if isinstance(arguments, str):
        value: Any = arguments
        for _ in range(MAX_ENCODED):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, str) or not value.strip():
                break
        if value == [] or (isinstance(value, str) and not value.strip()):
            return {}
        if isinstance(value, dict) and _depth_ok(value):
            return value
    return {RAW_ARGUMENTS: arguments}


def _depth_ok(value: Any) -> bool:
    stack = [(value, 0)]
    while stack:
        item, depth = stack.pop()
        if depth > MAX_DEPTH:
            return False
        children = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        stack.extend((child, depth + 1) for child in children)
    return True


def _message(raw: Any, where: str) -> Message:
    if not isinstance(raw, Mapping):
        raise HistoryError("a message must be an object", param=where)
    given = raw.get("role")
    role = ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        names = ", ".join(ROLES)
        raise HistoryError(f"role {str(given)[:40]!r} is not one of {names}", param=f"{where}.role")
    text, reasoning = _content(raw.get("content"), role, f"{where}.content")
    if role == "assistant" and not text and isinstance(raw.get("refusal"), str):
        text = raw["refusal"]
    message: Message = {"role": role, "content": text}
    if isinstance(raw.get("name"), str) and raw["name"]:
        message["name"] = raw["name"]
    if role == "tool":
        message["tool_call_id"] = _result_id(raw)
    if role == "assistant":
        _add_assistant_fields(message, raw, reasoning, where)
    return message


def _content(content: Any, role: str, where: str) -> tuple[str, str]:
    """Text and reasoning of one message. Parts are joined as they are: a client that wants a gap sends one."""
    if content is None:
        return "", ""
    if isinstance(content, str):
        return content, ""
    if isinstance(content, Sequence) and not isinstance(content, bytes):
        parts = [_part(part, role, f"{where}.{index}") for index, part in enumerate(content)]
        return "".join(text for text, _ in parts), "".join(reasoning for _, reasoning in parts)
    if role == "tool":
        return json.dumps(content, ensure_ascii=False), ""
    raise HistoryError("content must be a string or a list of parts", param=where)


def media_note(kind: str) -> str:
    """What the model reads in place of media in a tool's result. Whoever made the call did not choose what came back,
    and would find every later request refused."""
    return f"[{MEDIA_PARTS[kind]} left out: this model reads text only]"


def _part(part: Any, role: str, where: str) -> tuple[str, str]:
    if isinstance(part, str):
        return part, ""
    if not isinstance(part, Mapping):
        raise HistoryError("a content part must be an object", param=where)
    kind = part.get("type", "text")
    if kind in TEXT_PARTS and isinstance(part.get("text"), str):
        return part["text"], ""
    if kind == "refusal" and isinstance(part.get("refusal"), str):
        return part["refusal"], ""
    if kind in REASONING_PARTS:
        text = part.get("thinking", part.get("text", ""))
        return "", text if isinstance(text, str) else ""
    if isinstance(kind, str) and kind in MEDIA_PARTS:
        if role == "tool":
            return media_note(kind), ""
        raise HistoryError(f"content of type {kind!r} is not supported: this server takes text only", param=where)
    raise HistoryError(f"content part of type {str(kind)[:40]!r} is not a text part", param=where)


def _result_id(raw: Mapping[str, Any]) -> str:
    """The call that a result answers: tool_call_id, or where qwen-agent puts it; empty where the order decides."""
    extra = raw.get("extra")
    candidates = (
        raw.get("tool_call_id"),
        raw.get("id"),
        extra.get("function_id") if isinstance(extra, Mapping) else None,
    )
    return next((value for value in candidates if isinstance(value, str) and value), "")


def _add_assistant_fields(message: Message, raw: Mapping[str, Any], reasoning: str, where: str) -> None:
    for key in ("reasoning_content", "reasoning"):
        if not reasoning and isinstance(raw.get(key), str):
            reasoning = raw[key]
    if reasoning:
        message["reasoning_content"] = reasoning
    calls = raw.get("tool_calls") or []
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise HistoryError("tool_calls must be a list", param=f"{where}.tool_calls")
    shaped = [_call(call, f"{where}.tool_calls.{index}") for index, call in enumerate(calls)]
    legacy = raw.get("function_call")
    if not shaped and isinstance(legacy, Mapping):
        shaped = [_call({"function": legacy}, f"{where}.function_call")]
    if shaped:
        message["tool_calls"] = shaped


def _call(raw: Any, where: str) -> dict[str, Any]:
    function = raw.get("function") if isinstance(raw, Mapping) else None
    custom = raw.get("custom") if isinstance(raw, Mapping) and raw.get("type") == "custom" else None
    if isinstance(custom, Mapping):  # a tool that takes text is a function with one argument to the model
        function = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or not function["name"]:
        raise HistoryError("a tool call needs function.name", param=f"{where}.function.name")
    call_id = raw.get("id")
    return {
        "id": call_id if isinstance(call_id, str) else "",
        "type": "function",
        "function": {"name": function["name"], "arguments": parse_arguments(function.get("arguments"))},
    }


def _fill_call_ids(messages: list[Message]) -> None:
    """Calls without an id, or with that of another call of the same turn, get one that depends on their place only,
    so that the same history gives the same prompt."""
    taken = {call["id"] for message in messages for call in message.get("tool_calls", ())}
    index = 0
    for message in messages:
        seen = {""}
        for call in message.get("tool_calls", ()):
            if call["id"] in seen:
                name = f"call_{index}"
                while name in taken:
                    name += "_"
                call["id"] = name
                taken.add(name)
            seen.add(call["id"])
            index += 1


def _order_results(messages: list[Message]) -> list[Message]:
    """Bind every run of tool messages to the calls right before it, in one assistant message or several, or else to
    those that have no result yet, and put the run in the order of those calls."""
    ordered: list[Message] = []
    known: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []
    index = 0
    while index < len(messages):
        if messages[index]["role"] != "tool":
            known += messages[index].get("tool_calls", ())
            waiting += messages[index].get("tool_calls", ())
            ordered.append(messages[index])
            index += 1
            continue
        end = index
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        if not known:
            raise HistoryError(
                "a message of role 'tool' must follow an assistant message with tool_calls", param=f"messages.{index}"
            )
        before = itertools.takewhile(lambda message: message["role"] == "assistant", reversed(ordered))
        latest = [call for message in reversed([*before]) for call in message.get("tool_calls", ())]
        calls = latest or waiting or known
        bound = _bind(messages[index:end], calls)
        answered = {result["tool_call_id"] for result in bound}
        waiting = [call for call in waiting if call["id"] not in answered or not any(call is one for one in calls)]
        ordered += bound
        index = end
    return ordered


def _bind(results: list[Message], calls: list[dict[str, Any]]) -> list[Message]:
    """Match by id, then by name where results carry no known id, then by order; extra results stay at the end.
    An id that comes twice is the id of two calls, the second of which has got a new one."""
    by_id = {call["id"]: position for position, call in reversed(list(enumerate(calls)))}
    free = [position for position, call in enumerate(calls) if call["id"] not in {r["tool_call_id"] for r in results}]
    placed: list[tuple[int, int, Message]] = []
    for order, result in enumerate(results):
        position = by_id.pop(result["tool_call_id"], None)
        if position is None:
            named = [p for p in free if calls[p]["function"]["name"] == result.get("name")]
            position = next(iter(named or free), None)
            if position is not None:
                free.remove(position)
        if position is None:
            placed.append((len(calls), order, {"name": calls[-1]["function"]["name"], **result}))
            continue
        call = calls[position]
        placed.append((position, order, {**result, "tool_call_id": call["id"], "name": call["function"]["name"]}))
    return [message for _, _, message in sorted(placed, key=lambda item: item[:2])]


def _merge_leading_system(messages: list[Message]) -> list[Message]:
    """Several system messages at the start become one: most templates read only the first."""
    count = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2:
        return messages
    text = "\n\n".join(message["content"] for message in messages[:count] if message["content"])
    return [{**messages[0], "content": text}, *messages[count:]]
