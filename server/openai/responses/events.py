"""A Responses answer on the wire: the whole event sequence of a stream, or one object. Both read the same blocks.

Every event has its ``event:`` line and a sequence number. Nothing is sent before the engine's first output, so that a
refusal is a plain HTTP error; afterwards a failure is ``response.failed`` and ``error``, because some clients read only
one of the two.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from engine.messages import TokenLogprob
from server.blocks import Block, BlockFold
from server.errors import ApiError
from server.extension import extension
from server.generation import ChoiceDelta, Usage
from server.openai.logprobs import LogprobWriter
from server.streaming import COMMENT


@dataclass(frozen=True, slots=True)
class Form:
    """How a block of one kind is written: the type and the id's prefix of its item, the name of its delta events, the
    key that its words lie under, and for items with parts the type of the one part and the name of its events."""

    type: str
    prefix: str
    delta: str
    key: str
    part: str = ""
    part_event: str = ""


_TEXT = Form("message", "msg_", "output_text", "content", "output_text", "content_part")
_REASONING = Form("reasoning", "rs_", "reasoning_text", "content", "reasoning_text", "content_part")
_SUMMARY = Form("reasoning", "rs_", "reasoning_summary_text", "summary", "summary_text", "reasoning_summary_part")
_CALL = Form("function_call", "fc_", "function_call_arguments", "arguments")
_CUSTOM = Form("custom_tool_call", "ctc_", "custom_tool_call_input", "input")


@dataclass(frozen=True, slots=True)
class ResponseStyle:
    """fields: what is the same in every state of this response object, in OpenAI's order. relaxations: what of the
    request's schemas is not enforced. summary: reasoning is read as a summary. custom: custom tools, by name.
    namespaces: the (namespace, name) of tools that lie in one, by what the model calls them."""

    fields: Mapping[str, Any]
    logprobs: LogprobWriter | None = None
    relaxations: Sequence[str] = ()
    summary: bool = False
    custom: Collection[str] = ()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def response(self, status: str, output: Sequence[Any] = (), **changes: Any) -> dict[str, Any]:
        return {**self.fields, "status": status, "output": list(output), **changes}

    def form(self, block: Block) -> Form:
        if block.kind == "text":
            return _TEXT
        if block.kind == "reasoning":
            return _SUMMARY if self.summary else _REASONING
        return _CUSTOM if block.name in self.custom else _CALL

    def item(self, block: Block, status: str = "") -> dict[str, Any]:
        """An output item; with a status of its own, one that is still empty."""
        fresh = status == "in_progress"
        form = self.form(block)
        head = {"id": form.prefix + block.uid, "type": form.type}
        state = {"status": status or ("incomplete" if block.cut else "completed")}
        if block.kind == "call":
            words = "" if fresh else block.text
            return {**head, **state, "call_id": block.call_id, **self.named(block), form.key: words}
        parts = [] if fresh else [self.part(block)]
        if block.kind == "reasoning":
            return {**head, **state, "summary": [], "content": [], form.key: parts}
        return {**head, **state, "role": "assistant", form.key: parts}

    def named(self, block: Block) -> dict[str, str]:
        """The name of a call, and its namespace where it has one."""
        if block.name not in self.namespaces:
            return {"name": block.name}
        namespace, name = self.namespaces[block.name]
        return {"namespace": namespace, "name": name}

    def part(self, block: Block, text: str | None = None) -> dict[str, Any]:
        """The one part of a message or reasoning item."""
        text = block.text if text is None else text
        part = {"type": self.form(block).part, "text": text}
        if block.kind == "reasoning":
            return part
        return {**part, "annotations": [], "logprobs": self.written(block.logprobs)}

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

    def failed(self, error: ApiError) -> dict[str, Any]:
        """The response as it is when the generation has failed."""
        message = error.body()["error"]["message"]
        shown = {"code": "rate_limit_exceeded" if error.status == 429 else "server_error", "message": message}
        return self._style.response("failed", self._whole_items(), error=shown)

    def cancelled(self) -> dict[str, Any]:
        """The response as it is when its client does not want more of it."""
        return self._style.response("cancelled", self._whole_items())

    def _whole_items(self) -> list[dict[str, Any]]:
        return [self._style.item(block) for block in self.fold.whole if block is not self.fold.open]

    def fail(self, error: ApiError) -> bytes:
        if not self._begun:
            self._begin()
        body = error.body()["error"]
        self._event("response.failed", response=self.failed(error))
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
        return self._flush() or COMMENT

    def opened(self, block: Block) -> None:
        style, form = self._style, self._style.form(block)
        self._event("response.output_item.added", output_index=block.index, item=style.item(block, "in_progress"))
        self._delta_head = self._head(block)
        if form.part:
            self._event(f"response.{form.part_event}.added", **self._at(block), part=style.part(block, ""))

    def grown(self, block: Block, piece: str, logprobs: Sequence[TokenLogprob]) -> None:
        tail = b""
        if block.kind == "text":
            tail = b',"logprobs":' + orjson.dumps(self._style.written(logprobs))
        self._out.append(
            b'%b%b%b,"sequence_number":%d}\n\n' % (self._delta_head, orjson.dumps(piece), tail, self._sequence)
        )
        self._sequence += 1

    def closed(self, block: Block) -> None:
        style, form = self._style, self._style.form(block)
        done = f"response.{form.delta}.done"
        if block.kind == "call":
            if not block.cut:
                name = {"name": style.named(block)["name"]} if form is _CALL else {}
                self._event(done, **self._at(block), **name, **{form.key: block.text})
        else:
            logprobs = {"logprobs": style.written(block.logprobs)} if block.kind == "text" else {}
            self._event(done, **self._at(block), text=block.text, **logprobs)
            self._event(f"response.{form.part_event}.done", **self._at(block), part=style.part(block))
        self._event("response.output_item.done", output_index=block.index, item=style.item(block))

    def _begin(self) -> None:
        self._begun = True
        response = self._style.response("in_progress")
        self._event("response.created", response=response)
        self._event("response.in_progress", response=response)

    def _head(self, block: Block) -> bytes:
        """The bytes of a delta event up to its delta, which are the same for all deltas of a block."""
        name = f"response.{self._style.form(block).delta}.delta"
        data = orjson.dumps({"type": name, **self._at(block)})
        return b"event: %b\ndata: %b," % (name.encode(), data[:-1]) + b'"delta":'

    def _at(self, block: Block) -> dict[str, Any]:
        form = self._style.form(block)
        at = {"item_id": form.prefix + block.uid, "output_index": block.index}
        return {**at, f"{form.key}_index": 0} if form.part else at

    def _event(self, kind: str, **fields: Any) -> None:
        data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._out.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._sequence += 1

    def _flush(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data
