"""A Messages answer on the wire: the events of a stream, or one message. Both read the same blocks.

Nothing is sent before the engine's first output, so that a refusal is a plain HTTP error; afterwards a failure is an
``error`` event. Silence is filled with ``ping``, this dialect's own sign of life.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.messages import TokenLogprob
from server.anthropic.errors import error_object
from server.blocks import Block, BlockFold
from server.errors import ApiError
from server.extension import extension
from server.generation import ChoiceDelta, Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


@dataclass(frozen=True, slots=True)
class MessageStyle:
    """What this request's answers look like. thinking: whether thinking blocks are sent. relaxations: what of the
    request's schemas is not enforced."""

    id: str
    model: str
    request_id: str
    thinking: bool = False
    stop_sequences: Sequence[str] = ()
    relaxations: Sequence[str] = ()

    def message(self, content: list[Any], stop: tuple[str | None, str | None], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop[0],
            "stop_sequence": stop[1],
            "usage": usage,
        }


class MessageFold:
    """Blocks and the reason why they end."""

    def __init__(self, style: MessageStyle, sink: MessageEvents | None = None) -> None:
        self.blocks = BlockFold(sink, reasoning=style.thinking)
        self._style = style
        self._matched: str | None = None

    def add(self, delta: ChoiceDelta) -> None:
        self.blocks.add(delta)
        end = delta.output.finish_reason
        if end is not None and isinstance(end.matched, str) and end.matched in self._style.stop_sequences:
            self._matched = end.matched

    @property
    def stop(self) -> tuple[str | None, str | None]:
        """stop_reason and stop_sequence."""
        finish = self.blocks.finish or "stop"
        if finish == "stop" and self._matched is not None:
            return "stop_sequence", self._matched
        return _STOP_REASONS[finish], None

    def message(self, usage: Usage) -> dict[str, Any]:
        content = [_whole(block) for block in self.blocks.whole]
        return {**self._style.message(content, self.stop, usage_dict(usage)), **self.extension}

    @property
    def extension(self) -> dict[str, Any]:
        return extension([{"content_block": place} for place in self.blocks.rescued], self._style.relaxations)


def _whole(block: Block) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": signature(block)}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": orjson.Fragment(block.text)}


def _fresh(block: Block) -> dict[str, Any]:
    if block.kind == "text":
        return {"type": "text", "text": ""}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": {}}


def signature(block: Block) -> str:
    """Clients drop thinking blocks without a signature. Ours says which text it belongs to; it is never verified."""
    return hashlib.sha256(block.text.encode()).hexdigest()


def usage_dict(usage: Usage) -> dict[str, Any]:
    """input_tokens are those that the cache did not hold, as Anthropic counts."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "service_tier": "standard",
    }


class MessageEvents:
    """A BlockSink that writes the events of one stream. usage: the generation's own, still growing."""

    def __init__(self, style: MessageStyle, usage: Usage) -> None:
        self._style = style
        self._usage = usage
        self._fold = MessageFold(style, self)
        self._begun = False
        self._out: list[bytes] = []
        self._delta_head = b""

    def write(self, delta: ChoiceDelta) -> bytes:
        """All events of one delta; the first call also opens the message."""
        if not self._begun:
            self._begun = True
            message = self._style.message([], (None, None), usage_dict(self._usage))
            self._event("message_start", message=message)
            self._event("ping")
        self._fold.add(delta)
        return self._flush()

    def end(self) -> bytes:
        reason, sequence = self._fold.stop
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        self._event("message_delta", delta=delta, usage=usage_dict(self._usage), **self._fold.extension)
        self._event("message_stop")
        return self._flush()

    def fail(self, error: ApiError) -> bytes:
        return b"event: error\ndata: %b\n\n" % orjson.dumps(error_object(error, self._style.request_id))

    def idle(self) -> bytes:
        return b'event: ping\ndata: {"type":"ping"}\n\n'

    def opened(self, block: Block) -> None:
        self._event("content_block_start", index=block.index, content_block=_fresh(block))
        kind, key = _DELTAS[block.kind]
        self._delta_head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":'
            % (block.index, kind.encode(), key.encode())
        )

    def grown(self, block: Block, piece: str, logprobs: Sequence[TokenLogprob]) -> None:
        self._out.append(b"%b%b}}\n\n" % (self._delta_head, orjson.dumps(piece)))

    def closed(self, block: Block) -> None:
        if block.kind == "reasoning":
            delta = {"type": "signature_delta", "signature": signature(block)}
            self._event("content_block_delta", index=block.index, delta=delta)
        self._event("content_block_stop", index=block.index)

    def _event(self, kind: str, **fields: Any) -> None:
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields})))

    def _flush(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data
