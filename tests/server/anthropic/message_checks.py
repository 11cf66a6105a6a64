"""What must hold of every Messages stream, whatever the model said."""

from __future__ import annotations

from typing import Any

import orjson
from anthropic import types

KINDS: dict[str, Any] = {
    "message_start": types.RawMessageStartEvent,
    "content_block_start": types.RawContentBlockStartEvent,
    "content_block_delta": types.RawContentBlockDeltaEvent,
    "content_block_stop": types.RawContentBlockStopEvent,
    "message_delta": types.RawMessageDeltaEvent,
    "message_stop": types.RawMessageStopEvent,
}
DELTAS = {"text": "text_delta", "thinking": "thinking_delta", "tool_use": "input_json_delta"}
FIELDS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}


def check_message(body: Any) -> Any:
    """A whole message by the SDK's own types."""
    types.Message.model_validate(body, strict=True)
    assert body["id"].startswith("msg_")
    assert (body["type"], body["role"]) == ("message", "assistant")
    assert body["usage"]["input_tokens"] >= 0
    assert (body["stop_reason"] == "stop_sequence") == (body["stop_sequence"] is not None)
    return body


def check_stream(events: list[Any]) -> Any:
    """The whole event sequence; returns the message that it makes. ``broken``: raw text of a call that was cut."""
    events = [event for event in events if event["type"] != "ping"]
    for event in events:
        KINDS[event["type"]].model_validate(event, strict=True)
    start, *inner, delta, stop = events
    assert (start["type"], delta["type"], stop["type"]) == ("message_start", "message_delta", "message_stop")
    message = start["message"]
    assert message["content"] == []
    assert message["stop_reason"] is message["stop_sequence"] is None
    blocks: list[Any] = []
    while inner:
        end = next(i for i, event in enumerate(inner) if event["type"] == "content_block_stop")
        blocks.append(_check_block(inner[: end + 1], len(blocks)))
        inner = inner[end + 1 :]
    return check_message({**message, "content": blocks, **delta["delta"], "usage": delta["usage"]})


def _check_block(events: list[Any], index: int) -> Any:
    start, *deltas, _ = events
    assert start["type"] == "content_block_start"
    assert all(event["index"] == index for event in events)
    block = dict(start["content_block"])
    kind = block["type"]
    if kind == "thinking":
        last = deltas.pop()["delta"]
        assert last["type"] == "signature_delta"
        block["signature"] = last["signature"]
        assert last["signature"]
    assert all(event["type"] == "content_block_delta" for event in deltas)
    assert all(event["delta"]["type"] == DELTAS[kind] for event in deltas)
    text = "".join(event["delta"][FIELDS[kind]] for event in deltas)
    if kind != "tool_use":
        assert block[kind] == ""
        return {**block, kind: text}
    assert block["input"] == {}
    try:
        return {**block, "input": orjson.loads(text or "{}")}
    except ValueError:
        return {**block, "broken": text}
