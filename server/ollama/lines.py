"""An Ollama answer on the wire: one JSON object per line of a stream, or one object. Both read the same blocks.

Silence is filled with lines that say nothing, since an empty line or a comment is no JSON.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import orjson

from engine.messages import TokenLogprob
from server.blocks import Block, BlockFold
from server.errors import ApiError
from server.extension import extension
from server.generation import ChoiceDelta, Usage
from server.json_response import JsonArray
from server.ollama.errors import ollama_error
from server.openai.logprobs import LogprobWriter
from server.streaming import EventStream

_NANOSECONDS = 1_000_000_000


class LineStream(EventStream):
    """Its chunks end with newlines; what fills silence is always a line."""

    media_type = "application/x-ndjson"

    def comment(self) -> bytes:
        return self.idle_chunk()


@dataclass(frozen=True, slots=True)
class LineStyle:
    """What this request's answers look like. kind: which endpoint answers. started: monotonic seconds.
    relaxations: what of the request's schemas is not enforced."""

    model: str
    kind: Literal["chat", "generate"]
    started: float
    logprobs: LogprobWriter | None = None
    relaxations: Sequence[str] = ()

    def answer(self, text: str = "", thinking: str = "", calls: Sequence[Any] = (), **rest: Any) -> dict[str, Any]:
        head = {"model": self.model, "created_at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        thought = {"thinking": thinking} if thinking else {}
        if self.kind == "generate":
            return {**head, "response": text, **thought, "done": False, **rest}
        called = {"tool_calls": list(calls)} if calls else {}
        return {**head, "message": {"role": "assistant", "content": text, **thought, **called}, "done": False, **rest}

    def relaxed(self, relaxations: Sequence[str]) -> LineStyle:
        return replace(self, relaxations=relaxations)

    def loaded(self) -> dict[str, Any]:
        """The answer to a request that asks for nothing, by which clients have a model loaded."""
        return self.answer(done=True, done_reason="load")


class AnswerLines:
    """A BlockSink that writes the lines of one stream, or the whole answer at its end."""

    def __init__(self, style: LineStyle, *, stream: bool) -> None:
        self._style = style
        self._fold = BlockFold(self if stream else None)
        self._logprobs = JsonArray()
        self._first = 0.0
        self._out: list[bytes] = []

    def write(self, delta: ChoiceDelta) -> bytes:
        """The lines of one delta; b"" where there is nothing to say yet."""
        self._first = self._first or time.monotonic()
        if self._style.logprobs is not None:
            self._logprobs.extend(self._style.logprobs(delta.output.logprobs))
        self._fold.add(delta)
        lines = b"".join(self._out)
        self._out.clear()
        return lines

    def end(self, usage: Usage) -> bytes:
        return self._line(self._style.answer(**self._said(), **self._last(usage)))

    def whole(self, usage: Usage) -> dict[str, Any]:
        blocks = self._fold.whole
        texts = {kind: "".join(block.text for block in blocks if block.kind == kind) for kind in ("text", "reasoning")}
        calls = [_call(block, place) for place, block in enumerate(self._calls())]
        return self._style.answer(texts["text"], texts["reasoning"], calls, **self._said(), **self._last(usage))

    def idle(self) -> bytes:
        return self._line(self._style.answer())

    @staticmethod
    def fail(error: ApiError) -> bytes:
        return ollama_error(error) + b"\n"

    def opened(self, block: Block) -> None:
        return None

    def grown(self, block: Block, piece: str, logprobs: Sequence[TokenLogprob]) -> None:
        if block.kind == "call":
            return
        text, thinking = (piece, "") if block.kind == "text" else ("", piece)
        self._out.append(self._line(self._style.answer(text, thinking, **self._said())))

    def closed(self, block: Block) -> None:
        if block.kind == "call" and not block.cut:
            place = len(self._calls()) - 1
            self._out.append(self._line(self._style.answer(calls=[_call(block, place)])))

    def _said(self) -> dict[str, Any]:
        """The logprobs that have come since they were last said, where they are asked for."""
        if self._style.logprobs is None:
            return {}
        logprobs, self._logprobs = self._logprobs, JsonArray()
        return {"logprobs": logprobs.json()}

    def _calls(self) -> list[Block]:
        return [block for block in self._fold.whole if block.kind == "call"]

    def _last(self, usage: Usage) -> dict[str, Any]:
        """What only the last line says. Durations are nanoseconds, none of them 0: clients divide by them."""
        now = time.monotonic()
        first = self._first or now
        rescued = [place for place, block in enumerate(self._calls()) if block.rescued]
        return {
            "done": True,
            "done_reason": "length" if self._fold.finish == "length" else "stop",
            "total_duration": _duration(now - self._style.started),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": _duration(first - self._style.started),
            "eval_count": usage.completion_tokens,
            "eval_duration": _duration(now - first),
            **extension([{"tool_call": place} for place in rescued], self._style.relaxations),
        }

    def _line(self, answer: dict[str, Any]) -> bytes:
        return orjson.dumps(answer) + b"\n"


def _duration(seconds: float) -> int:
    return max(1, int(seconds * _NANOSECONDS))


def _call(block: Block, place: int) -> dict[str, Any]:
    """Arguments are an object here. The model may have broken lines between their tokens, which would end this one."""
    arguments = orjson.Fragment(block.text.replace("\n", " ").replace("\r", " "))
    return {"id": block.call_id, "function": {"index": place, "name": block.name, "arguments": arguments}}
