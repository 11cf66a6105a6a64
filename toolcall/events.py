"""What a parser says about model text, piece by piece.

The order is the order in the answer. Concatenating ``ToolCallArguments.fragment`` of one index gives the
call's arguments, a JSON object. What the dialects (chat, Responses, Messages, Ollama's) send are renderings of these
events. Structs, because an event is made for nearly every token.
"""

from __future__ import annotations

import msgspec


class TextDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """A call opens. ``index`` counts from 0 without gaps, ``id`` is unique over the conversation."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    index: int
    fragment: str


class ToolCallEnd(msgspec.Struct, frozen=True, gc=False):
    """The call is whole. A start without an end is a call that was cut off (finish_reason ``length``).

    rescued: the call was written outside the model's own format and recovered (toolcall.rescue).
    """

    index: int
    rescued: bool = False


Event = TextDelta | ReasoningDelta | ToolCallStart | ToolCallArguments | ToolCallEnd
