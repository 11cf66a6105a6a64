"""What a parser says about model text, piece by piece.

The order is the order in the answer. Concatenating ``ToolCallArguments.fragment`` of one index gives the
call's arguments, a JSON object. The four dialects (chat, legacy functions, Responses, Anthropic) are
renderers of these events.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A call opens. ``index`` counts from 0 without gaps, ``id`` is unique over the conversation."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    index: int
    fragment: str


@dataclass(frozen=True, slots=True)
class ToolCallEnd:
    """The call is whole. A start without an end is a call that was cut off (finish_reason ``length``).

    rescued: the call was written outside the model's own format and recovered (toolcall.rescue).
    """

    index: int
    rescued: bool = False


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
