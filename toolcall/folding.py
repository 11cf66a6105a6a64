"""The answer as a whole, made of its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from toolcall.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart
from toolcall.format import Format, ReasoningFormat
from toolcall.parser import EngineFinish, OutputParser
from toolcall.registry import get_format, get_reasoning

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """arguments: the JSON object as the model wrote it. rescued: written outside the model's own format."""

    id: str
    name: str
    arguments: str
    rescued: bool = False


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    """content and reasoning are "" where there is none. finish_reason is the API's."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ParsedCall, ...] = field(default=())
    finish_reason: FinishReason = "stop"


def fold(events: Iterable[Event], engine_finish: EngineFinish = "stop") -> ParsedOutput:
    """Calls without an end are left out: they were cut off or turned out to be text."""
    content: list[str] = []
    reasoning: list[str] = []
    open_calls: dict[int, tuple[ToolCallStart, list[str]]] = {}
    calls: list[ParsedCall] = []
    for event in events:
        match event:
            case TextDelta(text):
                content.append(text)
            case ReasoningDelta(text):
                reasoning.append(text)
            case ToolCallStart():
                open_calls[event.index] = (event, [])
            case ToolCallArguments(index, fragment):
                open_calls[index][1].append(fragment)
            case ToolCallEnd(index, rescued):
                start, parts = open_calls.pop(index)
                calls.append(ParsedCall(start.id, start.name, "".join(parts), rescued))
    finish: FinishReason = "length" if engine_finish == "length" else "tool_calls" if calls else "stop"
    return ParsedOutput("".join(content), "".join(reasoning), tuple(calls), finish)


def parse(
    text: str,
    tools: Sequence[Mapping[str, Any]],
    format: str | Format = "hermes",
    *,
    reasoning: str | ReasoningFormat | None = None,
    engine_finish: EngineFinish = "stop",
    **options: Any,
) -> ParsedOutput:
    """A whole answer at once. format, reasoning: names (toolcall.registry) or tables. options: those of OutputParser.

    Raises ValueError for an unknown name, and for nothing that a model can write.
    """
    fmt = get_format(format) if isinstance(format, str) else format
    thinks = get_reasoning(reasoning) if isinstance(reasoning, str) else reasoning
    parser = OutputParser(fmt, tools, reasoning=thinks, **options)
    return fold([*parser.feed(text), *parser.finish(engine_finish)], engine_finish)
