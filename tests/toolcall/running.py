"""Feeding a parser, and what it said in a form that does not depend on where the text was cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import toolcall
from tests.cases.chunking import chunkings
from tests.toolcall.fuzzing import TOOLS
from tests.toolcall.render_calls import Call
from toolcall.schema import ToolSet

Merged = list[tuple[Any, ...]]


def events_of(
    name: str, pieces: Iterable[str], finish: str = "stop", tools: Any = TOOLS, **options: Any
) -> list[toolcall.Event]:
    reasoning = options.pop("reasoning", None)
    parser = toolcall.OutputParser(
        toolcall.get_format(name), tools, reasoning=toolcall.get_reasoning(reasoning) if reasoning else None, **options
    )
    events = [event for piece in pieces for event in parser.feed(piece)]
    return [*events, *parser.finish("length" if finish == "length" else "stop")]


def merged(events: Sequence[toolcall.Event]) -> Merged:
    """Neighbouring deltas as one, ids left out."""
    out: Merged = []
    for event in events:
        match event:
            case toolcall.TextDelta(text) | toolcall.ReasoningDelta(text):
                _extend(out, (type(event).__name__,), text)
            case toolcall.ToolCallArguments(index, fragment):
                _extend(out, ("arguments", index), fragment)
            case toolcall.ToolCallStart(index, _, name):
                out.append(("start", index, name))
            case toolcall.ToolCallEnd(index, rescued):
                out.append(("end", index, rescued))
    return out


def read_however_cut(name: str, text: str, finish: str = "stop", **options: Any) -> toolcall.ParsedOutput:
    """What a whole text is read as, once every way to cut it was seen to say the same."""
    tools = options.get("tools", TOOLS)
    options["tools"] = tools if isinstance(tools, ToolSet) else ToolSet(tools)
    whole = events_of(name, [text], finish, **options)
    wanted = merged(whole)
    for label, pieces in chunkings(text):
        assert merged(events_of(name, pieces, finish, **options)) == wanted, label
    return toolcall.fold(whole)


def calls_of(answer: toolcall.ParsedOutput) -> list[Call]:
    return [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]


def _extend(out: Merged, key: tuple[Any, ...], text: str) -> None:
    if out and out[-1][:-1] == key:
        text = out.pop()[-1] + text
    out.append((*key, text))
