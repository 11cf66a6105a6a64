"""A chat answer on the wire: chunks of a stream, or one folded object. Both read the same ChoiceDelta."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from server.extension import extension
from server.generation import ChoiceDelta, Usage
from server.json_response import JsonArray
from server.openai.logprobs import LogprobWriter
from server.streaming import COMMENT, DONE
from toolcall.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

CallStyle = Literal["tool_calls", "function_call"]
"""How calls are written: the current way, or the legacy ``function_call`` of requests with ``functions``."""


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """What this request's answers look like. finish_calls: the finish_reason of an answer with calls. reasoning: the
    fields that hold it, none to leave it out. relaxations: what of the request's schemas is not enforced. custom: the
    names of custom tools."""

    id: str
    created: int
    model: str
    calls: CallStyle = "tool_calls"
    finish_calls: str = "tool_calls"
    reasoning: Sequence[str] = ("reasoning_content",)
    logprobs: LogprobWriter | None = None
    token_ids: bool = False
    relaxations: Sequence[str] = ()
    custom: Collection[str] = ()

    def call(self, call_id: str, name: str, words: str) -> dict[str, Any]:
        """An entry of ``tool_calls``; words: a function's arguments, or what a custom tool is given."""
        if name in self.custom:
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": words}}
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": words}}

    def finish_reason(self, finish: str) -> str:
        return self.finish_calls if finish == "tool_calls" else finish

    def extension(self, rescued: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """rescued: (choice, call)."""
        return extension([{"choice": choice, "tool_call": call} for choice, call in rescued], self.relaxations)


class ChunkWriter:
    """ChoiceDelta -> the bytes of its SSE events. Everything that is the same in every chunk is written once."""

    def __init__(self, style: ChatStyle, tail: Callable[[], bytes] = bytes) -> None:
        """tail: what every chunk with choices ends with (server/openai/stream_usage.py)."""
        self._style = style
        self._make_tail = tail
        self._tail = b""
        head = orjson.dumps(
            {"id": style.id, "object": "chat.completion.chunk", "created": style.created, "model": style.model}
        )
        self._head = b"data: " + head[:-1] + b","
        self._open = self._head + b'"choices":[{"index":'
        self._begun: set[int] = set()
        self._ended: set[int] = set()
        self._rescued: list[tuple[int, int]] = []
        self._custom: set[tuple[int, int]] = set()

    def write(self, delta: ChoiceDelta) -> bytes:
        """All events of one delta; b"" where there is nothing to say yet."""
        style = self._style
        index = delta.index
        self._tail = self._make_tail()
        parts: list[bytes] = []
        if index not in self._begun:
            parts.append(self._begin(index))
        logprobs = delta.output.logprobs if style.logprobs is not None else ()
        bodies = [body for event in delta.events if (body := self._delta(event, index))]
        for event in delta.events:
            if type(event) is ToolCallEnd and event.rescued:
                self._rescued.append((index, event.index))
        if logprobs or (style.token_ids and delta.output.token_ids):
            bodies = bodies or [b"{}"]
            parts.append(self._chunk(index, bodies[0], self._extra(delta)))
            bodies = bodies[1:]
        parts += [self._chunk(index, body) for body in bodies]
        if delta.finish is not None:
            self._ended.add(index)
            parts.append(self._end(index, style.finish_reason(delta.finish)))
        return b"".join(parts)

    def _begin(self, index: int) -> bytes:
        self._begun.add(index)
        return self._chunk(index, b'{"role":"assistant","content":""}')

    def _chunk(self, index: int, delta: bytes, extra: bytes = b',"logprobs":null') -> bytes:
        return b'%b%d,"delta":%b%b,"finish_reason":null}]%b}\n\n' % (self._open, index, delta, extra, self._tail)

    def _extra(self, delta: ChoiceDelta) -> bytes:
        style = self._style
        logprobs = None
        if style.logprobs is not None and delta.output.logprobs:
            logprobs = {"content": style.logprobs(delta.output.logprobs), "refusal": None}
        extra = b',"logprobs":' + orjson.dumps(logprobs)
        if style.token_ids:
            extra += b',"token_ids":' + orjson.dumps(delta.output.token_ids)
        return extra

    def _end(self, index: int, reason: str) -> bytes:
        rescued = [found for found in self._rescued if found[0] == index]
        extension = self._style.extension(rescued)
        end = b"," + orjson.dumps(extension)[1:] if extension else b"}"
        return b'%b%d,"delta":{},"logprobs":null,"finish_reason":"%b"}]%b%b\n\n' % (
            self._open,
            index,
            reason.encode(),
            self._tail,
            end,
        )

    def _delta(self, event: Event, choice: int) -> bytes:
        kind = type(event)
        if kind is TextDelta:
            return b'{"content":%b}' % orjson.dumps(event.text)  # type: ignore[union-attr]
        if kind is ToolCallArguments:
            return self._arguments(event, choice)  # type: ignore[arg-type]
        if kind is ToolCallStart:
            return self._call(event, choice)  # type: ignore[arg-type]
        if kind is ReasoningDelta and self._style.reasoning:
            return orjson.dumps(dict.fromkeys(self._style.reasoning, event.text))  # type: ignore[union-attr]
        return b""

    def _call(self, event: ToolCallStart, choice: int) -> bytes:
        if self._style.calls == "function_call":
            return orjson.dumps({"function_call": {"name": event.name, "arguments": ""}})
        if event.name in self._style.custom:
            self._custom.add((choice, event.index))
        call = {"index": event.index, **self._style.call(event.id, event.name, "")}
        return orjson.dumps({"tool_calls": [call]})

    def _arguments(self, event: ToolCallArguments, choice: int) -> bytes:
        fragment = orjson.dumps(event.fragment)
        if self._style.calls == "function_call":
            return b'{"function_call":{"arguments":%b}}' % fragment
        if (choice, event.index) in self._custom:
            return b'{"tool_calls":[{"index":%d,"custom":{"input":%b}}]}' % (event.index, fragment)
        return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (event.index, fragment)

    def end(self, usage: Usage | None) -> bytes:
        """The end of the stream, with the usage where there is one."""
        if usage is None:
            return DONE
        return b'%b"choices":[],"usage":%b}\n\n%b' % (self._head, orjson.dumps(usage.as_dict()), DONE)

    def idle(self) -> bytes:
        """A real chunk that says nothing, for clients that count only those as signs of life. The first one of all
        says the role, and none comes of a choice that has ended."""
        self._tail = self._make_tail()
        if not self._begun:
            return self._begin(0)
        alive = self._begun - self._ended
        return self._chunk(min(alive), b"{}") if alive else COMMENT


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    arguments: list[str] = field(default_factory=list)
    whole: bool = False
    rescued: bool = False


@dataclass(slots=True)
class _Choice:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    logprobs: JsonArray = field(default_factory=JsonArray)
    token_ids: list[int] = field(default_factory=list)
    finish: str = "stop"


class ChatFold:
    """Collects ChoiceDeltas into one ``chat.completion``. A call that was cut off is left out."""

    def __init__(self, style: ChatStyle) -> None:
        self._style = style
        self._choices: dict[int, _Choice] = {}

    def add(self, delta: ChoiceDelta) -> None:
        choice = self._choices.setdefault(delta.index, _Choice())
        for event in delta.events:
            if isinstance(event, TextDelta):
                choice.text.append(event.text)
            elif isinstance(event, ReasoningDelta):
                choice.reasoning.append(event.text)
            elif isinstance(event, ToolCallStart):
                choice.calls.append(_Call(event.id, event.name))
            elif isinstance(event, ToolCallArguments):
                choice.calls[event.index].arguments.append(event.fragment)
            elif isinstance(event, ToolCallEnd):
                call = choice.calls[event.index]
                call.whole, call.rescued = True, event.rescued
        if self._style.logprobs is not None:
            choice.logprobs.extend(self._style.logprobs(delta.output.logprobs))
        if self._style.token_ids:
            choice.token_ids.extend(delta.output.token_ids)
        if delta.finish is not None:
            choice.finish = delta.finish

    def result(self, usage: Usage) -> dict[str, Any]:
        style = self._style
        return {
            "id": style.id,
            "object": "chat.completion",
            "created": style.created,
            "model": style.model,
            "choices": [self._choice(index, self._choices[index]) for index in sorted(self._choices)],
            "usage": usage.as_dict(),
            **style.extension(self._rescued()),
        }

    def _rescued(self) -> list[tuple[int, int]]:
        """(choice, place among its answered calls) of rescued calls."""
        found = []
        for index in sorted(self._choices):
            whole = [call for call in self._choices[index].calls if call.whole]
            found += [(index, place) for place, call in enumerate(whole) if call.rescued]
        return found

    def _choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        style = self._style
        logprobs = None
        if style.logprobs is not None:
            logprobs = {"content": choice.logprobs.json(), "refusal": None}
        body: dict[str, Any] = {
            "index": index,
            "message": self._message(choice),
            "logprobs": logprobs,
            "finish_reason": style.finish_reason(choice.finish),
        }
        if style.token_ids:
            body["token_ids"] = choice.token_ids
        return body

    def _message(self, choice: _Choice) -> dict[str, Any]:
        calls = [call for call in choice.calls if call.whole]
        text = "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text if text or not calls else None, "refusal": None}
        if choice.reasoning and self._style.reasoning:
            message |= dict.fromkeys(self._style.reasoning, "".join(choice.reasoning))
        entries = [self._style.call(call.id, call.name, "".join(call.arguments)) for call in calls]
        if entries and self._style.calls == "function_call":
            message["function_call"] = entries[0]["function"]
        elif entries:
            message["tool_calls"] = entries
        return message
