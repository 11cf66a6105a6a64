"""The writing side of the parser: text with its white space, and calls, as events in order."""

from __future__ import annotations

from collections.abc import Callable

from toolcall.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)
from toolcall.ids import IdFactory
from toolcall.lexer import SPACE, NoCall
from toolcall.schema import Tool, ToolSet


class Channel:
    """Text that goes out as it comes, except that white space waits for the text after it."""

    __slots__ = ("_closed", "_held", "_parts", "drop_leading", "empty", "last", "tail")

    def __init__(self, drop_leading: bool = False) -> None:
        self._parts: list[str] = []
        self._held = ""
        self.tail = ""
        """The part of the held text that would be written at the end: without residual end-of-turn tokens."""
        self.drop_leading = drop_leading
        self.empty = True
        self._closed = False
        """A closing token was the last that came: white space behind it is layout unless text follows."""
        self.last = ""
        """The last two characters, where no call has come behind them."""

    def put(self, text: str) -> None:
        self.last = text[-2:] if len(text) > 1 else (self.last + text)[-2:]
        body = text.rstrip(SPACE)
        if not body:
            self._held += text
            self.tail += "" if self._closed else text
            return
        self._closed = False
        piece = self._held + body if self._held else body
        self._held = self.tail = text[len(body) :]
        if self.empty:
            if self.drop_leading:
                piece = piece.lstrip(SPACE)
            self.empty = False
        self._parts.append(piece)

    def put_end_token(self, token: str) -> None:
        """A residual end-of-turn token: text if more text follows, nothing at the end."""
        self._held += token

    def drop_held(self) -> None:
        self._held = self.tail = ""

    def pass_layout(self, token: str) -> None:
        """A token that is no text, as ``<response>``: white space on its inner side is layout too."""
        if token.startswith("</"):
            self.drop_held()
            self._closed = True
        elif self.empty:
            self.drop_leading = True

    def flush_tail(self) -> None:
        if self.tail and not (self.empty and self.drop_leading):
            self._parts.append(self.tail)
        self.drop_held()

    def take(self) -> str:
        text = "".join(self._parts)
        self._parts.clear()
        return text


class Output:
    """Collects events. At most one call is open at a time."""

    def __init__(self, tools: ToolSet, make_id: IdFactory) -> None:
        self.tools = tools
        self.content = Channel()
        self.reasoning = Channel(drop_leading=True)
        self.next_index = 0
        self.calls_ended = 0
        self.discard_calls = False
        self.make_id = make_id
        self.lead = ""
        """Text that stands in front of the call that is being read, and goes out if it is one."""
        self._call: CallWriter | None = None
        self._events: list[Event] = []

    def take(self) -> list[Event]:
        """The events since the last take."""
        self.flush()
        events = self._events
        if events:
            self._events = []
        return events

    def flush(self) -> None:
        call = self._call
        if call is not None:
            if call.started and call.parts and not self.discard_calls:
                self._events.append(ToolCallArguments(call.index, "".join(call.parts)))
                call.parts.clear()
            return
        if self.reasoning._parts:
            self._events.append(ReasoningDelta(self.reasoning.take()))
        if self.content._parts:
            self._events.append(TextDelta(self.content.take()))

    def add(self, events: list[Event]) -> None:
        """Events that another parser has made."""
        self.flush()
        self._events.extend(events)

    def open_call(self, *, hold: bool = False, rescued: bool = False, undeclared: bool = False) -> CallWriter:
        """hold: nothing of the call goes out before it is whole. undeclared: its name may be that of no declared tool;
        such a call goes out when it is whole."""
        self.flush()
        self._call = CallWriter(self, hold, rescued, undeclared)
        return self._call

    @property
    def call_is_named(self) -> bool:
        return self._call is not None and self._call.tool is not None

    def drop_call(self) -> None:
        """The open call was none or was cut off: it never gets an end."""
        self.lead = ""
        if self._call is not None:
            self.flush()
            self._call = None

    def forget_space(self) -> None:
        """White space in front of a call is layout, although the call is cut off."""
        self.content.drop_held()

    def start(self, call: CallWriter) -> None:
        assert call.tool is not None
        call.started = True
        if self.lead:
            self.content.put(self.lead)
            self.lead = ""
            self._events.append(TextDelta(self.content.take()))
        if self.discard_calls:
            return
        call.index = self.next_index
        self.next_index += 1
        self._events.append(ToolCallStart(call.index, self.make_id(call.tool.name, call.index), call.tool.name))

    def end(self, call: CallWriter) -> None:
        self.calls_ended += 1
        self.content.drop_leading = True
        self.content.last = ""
        self._call = None
        if self.discard_calls:
            return
        if call.parts:
            self._events.append(ToolCallArguments(call.index, "".join(call.parts)))
        self._events.append(ToolCallEnd(call.index, call.rescued))


class CallWriter:
    """One call on its way out. Its name goes out once, when it is known to be a declared tool and the first
    argument value has begun; ``put`` takes pieces of its arguments."""

    __slots__ = (
        "_committed",
        "_hold",
        "_out",
        "_undeclared",
        "index",
        "parts",
        "put",
        "rescued",
        "started",
        "tool",
        "undeclared",
        "written",
    )

    def __init__(self, out: Output, hold: bool, rescued: bool, undeclared: bool = False) -> None:
        self._out = out
        self._hold = hold
        self._undeclared = undeclared
        self._committed = False
        self.rescued = rescued
        self.index = -1
        self.tool: Tool | None = None
        self.undeclared = False
        """The name is that of no declared tool."""
        self.started = False
        self.written = False
        self.parts: list[str] = []
        self.put: Callable[[str], None] = self.parts.append

    def may_be_named(self, text: str) -> bool:
        """Whether a name that begins like this may be that of a call."""
        return self._out.tools.may_begin(text) or (self._undeclared and self._out.tools.may_begin_undeclared(text))

    def declares(self, name: str) -> bool:
        return self._out.tools.get(name) is not None

    def takes(self, name: str) -> bool:
        """Whether a call may have this name here."""
        return self.declares(name) or (self._undeclared and self._out.tools.undeclared(name) is not None)

    def named(self, name: str) -> Tool:
        """Raises NoCall for a name that no call may have here."""
        tools = self._out.tools
        self.tool = tools.get(name) or (tools.meant(name) if self._undeclared else None)
        if self.tool is None and self._undeclared:
            self.tool = tools.undeclared(name)
            self._hold = self.undeclared = self.tool is not None
        if self.tool is None:
            raise NoCall
        self._maybe_start()
        return self.tool

    def commit(self) -> None:
        """From here on the text is taken for a call of this tool."""
        if not self._committed:
            self._committed = True
            self.written = True
            self._maybe_start()

    def _maybe_start(self) -> None:
        if self._committed and self.tool is not None and not self.started and not self._hold:
            self._out.start(self)

    def end(self) -> None:
        """The call is whole. A call without arguments gets ``{}``, if its tool is declared."""
        if self.tool is None or (self.undeclared and not self.written):
            raise NoCall
        if not self.written:
            self.put("{}")
            self.written = True
        if not self.started:
            self._out.start(self)
        self._out.end(self)
