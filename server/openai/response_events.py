"""A Responses answer on the wire: the whole event sequence of a stream, or one object. Both read the same blocks.

Every event has its ``event:`` line and a sequence number. Nothing is sent before the engine's first output, so that a
refusal is a plain HTTP error; afterwards a failure is ``response.failed`` and ``error``, because some clients read only
one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.messages import TokenLogprob
from server.blocks import Block, BlockFold
from server.errors import ApiError
from server.extension import extension
from server.generation import ChoiceDelta, Usage

LogprobWriter = Callable[[Sequence[TokenLogprob]], list[dict[str, Any]]]

_PREFIXES = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


@dataclass(frozen=True, slots=True)
class ResponseStyle:
    """fields: what is the same in every state of this response object, in OpenAI's order. relaxations: what of the
    request's schemas is not enforced."""

    fields: Mapping[str, Any]
    logprobs: LogprobWriter | None = None
    relaxations: Sequence[str] = ()

    def response(self, status: str, output: Sequence[Any] = (), **changes: Any) -> dict[str, Any]:
        return {**self.fields, "status": status, "output": list(output), **changes}

    def item(self, block: Block, status: str = "") -> dict[str, Any]:
        """An output item; with a status of its own, one that is still empty."""
        fresh = status == "in_progress"
        head = {"id": item_id(block), "type": _TYPES[block.kind]}
        state = {"status": status or ("incomplete" if block.cut else "completed")}
        if block.kind == "call":
            arguments = "" if fresh else block.text
            return {**head, **state, "call_id": block.call_id, "name": block.name, "arguments": arguments}
        content = [] if fresh else [self.part(block)]
        if block.kind == "reasoning":
            return {**head, **state, "summary": [], "content": content}
        return {**head, **state, "role": "assistant", "content": content}

    def part(self, block: Block, text: str | None = None) -> dict[str, Any]:
        """The one content part of a message or reasoning item."""
        text = block.text if text is None else text
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.written(block.logprobs)}

    def written(self, logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
        return self.logprobs(logprobs) if self.logprobs is not None and logprobs else []

    def ended(self, fold: BlockFold, usage: Usage) -> dict[str, Any]:
        """The response as it is when the generation is over."""
        output = [self.item(block) for block in fold.whole]
        own = extension([{"output_index": place} for place in fold.rescued], self.relaxations)
        if fold.finish == "length":
            details = {"reason": "max_output_tokens"}
            return self.response("incomplete", output, incomplete_details=details, usage=usage_dict(usage), **own)
        return self.response("completed", output, completed_at=int(time.time()), usage=usage_dict(usage), **own)


_TYPES = {"text": "message", "reasoning": "reasoning", "call": "function_call"}


def item_id(block: Block) -> str:
    return _PREFIXES[block.kind] + block.uid


def usage_dict(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def complete(fold: BlockFold) -> None:
    """An answer without text and calls gets an empty message: clients read the first one unasked."""
    if not any(block.kind != "reasoning" for block in fold.whole):
        fold.begin("text").cut = fold.finish == "length"
        fold.close()


class ResponseEvents:
    """A BlockSink that writes the events of one stream."""

    def __init__(self, style: ResponseStyle) -> None:
        self._style = style
        self.fold = BlockFold(self, logprobs=style.logprobs is not None)
        self._sequence = 0
        self._begun = False
        self._out: list[bytes] = []
        self._delta_head = b""

    def write(self, delta: ChoiceDelta) -> bytes:
        """All events of one delta; the first call also opens the response."""
        if not self._begun:
            self._begin()
        self.fold.add(delta)
        return self._flush()

    def end(self, usage: Usage) -> tuple[dict[str, Any], bytes]:
        """The final response object, and its event."""
        complete(self.fold)
        response = self._style.ended(self.fold, usage)
        self._event(f"response.{response['status']}", response=response)
        return response, self._flush()

    def fail(self, error: ApiError) -> bytes:
        if not self._begun:
            self._begin()
        body = error.body()["error"]
        shown = {"code": "rate_limit_exceeded" if error.status == 429 else "server_error", "message": body["message"]}
        output = [self._style.item(block) for block in self.fold.whole if block is not self.fold.open]
        self._event("response.failed", response=self._style.response("failed", output, error=shown))
        plain = {"code": body["code"], "message": body["message"], "param": body["param"]}
        self._event("error", **plain, error=body)
        return self._flush()

    def idle(self) -> bytes:
        """A real event that says nothing: an empty delta of what is open, else the state of the response."""
        if not self._begun:
            self._begin()
        elif self.fold.open is not None:
            self.grown(self.fold.open, "", ())
        elif not self.fold.blocks:
            self._event("response.in_progress", response=self._style.response("in_progress"))
        return self._flush() or b": keep-alive\n\n"

    def opened(self, block: Block) -> None:
        style = self._style
        self._event("response.output_item.added", output_index=block.index, item=style.item(block, "in_progress"))
        self._delta_head = self._head(block)
        if block.kind != "call":
            self._event("response.content_part.added", **self._at(block), part=style.part(block, ""))

    def grown(self, block: Block, piece: str, logprobs: Sequence[TokenLogprob]) -> None:
        tail = b""
        if block.kind == "text":
            tail = b',"logprobs":' + orjson.dumps(self._style.written(logprobs))
        self._out.append(
            b'%b%b%b,"sequence_number":%d}\n\n' % (self._delta_head, orjson.dumps(piece), tail, self._sequence)
        )
        self._sequence += 1

    def closed(self, block: Block) -> None:
        style = self._style
        if block.kind == "call":
            if not block.cut:
                at = {"item_id": item_id(block), "output_index": block.index}
                self._event("response.function_call_arguments.done", **at, name=block.name, arguments=block.text)
        elif block.kind == "reasoning":
            self._event("response.reasoning_text.done", **self._at(block), text=block.text)
            self._event("response.content_part.done", **self._at(block), part=style.part(block))
        else:
            logprobs = style.written(block.logprobs)
            self._event("response.output_text.done", **self._at(block), text=block.text, logprobs=logprobs)
            self._event("response.content_part.done", **self._at(block), part=style.part(block))
        self._event("response.output_item.done", output_index=block.index, item=style.item(block))

    def _begin(self) -> None:
        self._begun = True
        response = self._style.response("in_progress")
        self._event("response.created", response=response)
        self._event("response.in_progress", response=response)

    def _head(self, block: Block) -> bytes:
        """The bytes of a delta event up to its delta, which are the same for all deltas of a block."""
        kind = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}[block.kind]
        at = {"item_id": item_id(block), "output_index": block.index} if block.kind == "call" else self._at(block)
        name = f"response.{kind}.delta"
        return b"event: %b\ndata: %b," % (name.encode(), orjson.dumps({"type": name, **at})[:-1]) + b'"delta":'

    @staticmethod
    def _at(block: Block) -> dict[str, Any]:
        return {"item_id": item_id(block), "output_index": block.index, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._sequence += 1

    def _flush(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data
