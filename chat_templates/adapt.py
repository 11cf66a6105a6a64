"""Fits a normalised conversation to what one template can render (see traits)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from chat_templates.history import RAW_ARGUMENTS, Message
from chat_templates.sandbox import tojson
from chat_templates.traits import Traits

_ID_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

TOOL_PROMPT = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{signatures}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def adapt(
    messages: list[Message], tools: list[dict[str, Any]], traits: Traits
) -> tuple[list[Message], list[dict[str, Any]]]:
    """Messages and tools in the dialect of the template. Input is not changed.

    Runs on guarded text: markers that it adds itself (tools_as_text) stay special, a client's do not.
    """
    uses_tools = bool(tools) or any(m["role"] == "tool" or "tool_calls" in m for m in messages)
    if uses_tools and not traits.tools:
        messages, tools = tools_as_text(messages, tools)
    if traits.call_ids:
        messages = _map_ids(messages, traits.call_ids)
    if not traits.system or not traits.late_system:
        messages = _move_system(messages, traits)
    if not traits.consecutive:
        messages = _merge_same_role(messages)
    if not traits.object_arguments:
        messages = _arguments_as_text(messages)
    if traits.thinking_key:
        messages = [{**m, "thinking": m["reasoning_content"]} if "reasoning_content" in m else m for m in messages]
    return messages, tools


def split_reasoning(message: Message) -> Message:
    """Move ``<think>..</think>`` at the start of an assistant's content to reasoning_content.

    For templates that search content for these markers; it must happen before the guard hides them.
    """
    text = message["content"]
    if message["role"] != "assistant" or "</think>" not in text or "reasoning_content" in message:
        return message
    reasoning, _, rest = text.partition("</think>")
    reasoning = reasoning.strip().removeprefix("<think>").strip("\n")
    return {**message, "content": rest.lstrip("\n"), "reasoning_content": reasoning}


def tools_as_text(messages: list[Message], tools: list[dict[str, Any]]) -> tuple[list[Message], list[dict[str, Any]]]:
    """Declarations into the system message, calls and results into text: for templates that know no tools.

    The dialect is Hermes (``<tool_call>`` JSON), which the tool-call parser reads by default.
    """
    shaped = [_calls_as_text(message) for message in messages]
    if tools:
        prompt = TOOL_PROMPT.format(signatures="\n".join(tojson(tool) for tool in tools))
        if shaped[0]["role"] == "system":
            text = f"{shaped[0]['content']}\n\n{prompt}" if shaped[0]["content"] else prompt
            shaped[0] = {**shaped[0], "content": text}
        else:
            shaped.insert(0, {"role": "system", "content": prompt})
    return _merge_results(shaped), []


def _calls_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    blocks = [message["content"]] if message["content"] else []
    for call in message["tool_calls"]:
        body = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        blocks.append(f"<tool_call>\n{tojson(body)}\n</tool_call>")
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(blocks)}


def _merge_results(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    in_run = False
    for message in messages:
        if message["role"] != "tool":
            merged.append(message)
            in_run = False
            continue
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        if in_run:
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n{text}"}
        else:
            merged.append({"role": "user", "content": text})
        in_run = True
    return merged


def _move_system(messages: list[Message], traits: Traits) -> list[Message]:
    """Late system messages join the first one; without a system role, all of it goes before the first user's text."""
    head = messages[:1] if messages[0]["role"] == "system" else []
    body = messages[len(head) :]
    if traits.late_system and traits.system:
        return messages
    texts = [m["content"] for m in (*head, *(m for m in body if m["role"] == "system")) if m["content"]]
    body = [m for m in body if m["role"] != "system"]
    if not texts:
        return body or messages
    text = "\n\n".join(texts)
    if traits.system:
        return [{"role": "system", "content": text}, *body]
    if body and body[0]["role"] == "user":
        return [{**body[0], "content": f"{text}\n\n{body[0]['content']}"}, *body[1:]]
    return [{"role": "user", "content": text}, *body]


def _merge_same_role(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        plain = "tool_calls" not in message and message["role"] in ("user", "assistant")
        if plain and merged and merged[-1]["role"] == message["role"] and "tool_calls" not in merged[-1]:
            merged[-1] = {**merged[-1], "content": f"{merged[-1]['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _with_calls(message: Message, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Message:
    return {**message, "tool_calls": [change(call) for call in message["tool_calls"]]}


def _arguments_as_text(messages: list[Message]) -> list[Message]:
    def as_text(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        raw = arguments.get(RAW_ARGUMENTS) if len(arguments) == 1 else None
        text = raw if isinstance(raw, str) else json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": text}}

    return [_with_calls(m, as_text) if "tool_calls" in m else m for m in messages]


def _map_ids(messages: Sequence[Message], style: str) -> list[Message]:
    """Give calls and results the ids the model was trained on, the same id for both sides of a call.

    Ids may repeat in one conversation (other servers' ``call_0``); a result belongs to the latest call of its id.
    """
    mapped: dict[str, str] = {}
    count = 0
    shaped: list[Message] = []
    for message in messages:
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                mapped[call["id"]] = _native_id(style, call, count)
                calls.append({**call, "id": mapped[call["id"]]})
                count += 1
            message = {**message, "tool_calls": calls}
        elif message["role"] == "tool":
            foreign = message.get("tool_call_id", "")
            message = {**message, "tool_call_id": mapped.get(foreign, foreign)}
        shaped.append(message)
    return shaped


def _native_id(style: str, call: dict[str, Any], count: int) -> str:
    if style == "kimi":
        return f"functions.{call['function']['name']}:{count}"
    foreign: str = call["id"]
    if len(foreign) == 9 and foreign.isascii() and foreign.isalnum():
        return foreign
    digest = hashlib.sha256(foreign.encode("utf-8", "surrogatepass")).digest()
    return "".join(_ID_ALPHABET[byte % len(_ID_ALPHABET)] for byte in digest[:9])
