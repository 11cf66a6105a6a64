"""Calls written as tags with one element for each argument: ``<function=f><parameter=k>v</parameter></function>``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from toolcall.json_stream import checked, escape, quote
from toolcall.lexer import Lexer, Markers, NoCall, Put, Read, at_marker, peek, skip_space, until
from toolcall.output import CallWriter, Output
from toolcall.schema import ParamType, Tool, to_json
from toolcall.syntax.block import Options

MAX_HEADER = 512
"""A name or key longer than this is none."""


@dataclass(frozen=True)
class TaggedCalls:
    """call_open NAME name_end (param_open KEY key_end VALUE value_close)* call_close.

    call_open: "" where the name follows the block's opener directly. name_stops: markers that end the name and
    are not consumed. next_open: markers that begin another call or end the block and so end a call whose
    call_close is missing. loose_close: a value may also end at another parameter or at the end of the call.
    """

    call_open: str
    name_end: str
    param_open: str
    key_end: str
    value_close: str
    call_close: str
    value_open: str = ""
    name_stops: tuple[str, ...] = ()
    next_open: tuple[str, ...] = ()
    loose_close: bool = True
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open,))

    @cached_property
    def _name_ends(self) -> Markers:
        return Markers((self.name_end, *self.name_stops))

    @cached_property
    def _members(self) -> Markers:
        return Markers((self.param_open, self.call_close))

    @cached_property
    def _key_ends(self) -> Markers:
        return Markers((self.key_end,))

    @cached_property
    def _value_opens(self) -> Markers:
        return Markers((self.value_open,))

    @cached_property
    def _value_ends(self) -> tuple[Markers, Markers]:
        """Where a value ends: without and with a layout newline on either side."""
        loose = (self.param_open, self.call_close) if self.loose_close else ()
        plain = (self.value_close, *("\n" + w for w in loose))
        return Markers(plain, '"\\' + _CONTROL), Markers((*plain, "\n" + self.value_close), '"\\' + _CONTROL)

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if self.call_open:
            return (yield from at_marker(lx, self._opening)) is not None
        char = yield from peek(lx)
        return bool(char) and char not in "{[<"

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued)
        tool = yield from self._read_name(lx, out, call)
        seen: list[str] = []
        while True:
            char = yield from skip_space(lx)
            if char == "":
                if lx.cut or not (seen or not tool.keys):
                    raise NoCall
                break
            word = yield from at_marker(lx, self._members)
            if word == self.call_close:
                break
            if word is None:
                if self._at_next(lx) and seen:
                    break
                raise NoCall
            yield from self._read_param(lx, call, tool, seen)
        call.put("}" if seen else "{}")
        call.written = True
        call.end()

    def _at_next(self, lx: Lexer) -> bool:
        return any(lx.buf.startswith(w, lx.pos) for w in self.next_open)

    def _read_name(self, lx: Lexer, out: Output, call: CallWriter) -> Read[Tool]:
        parts: list[str] = []
        word = yield from until(lx, self._name_ends, checked(lx, parts, out.tools.may_begin), limit=MAX_HEADER)
        if word is None:
            raise NoCall
        if word == self.name_end:
            lx.pos += len(word)
        return call.named("".join(parts))

    def _read_param(self, lx: Lexer, call: CallWriter, tool: Tool, seen: list[str]) -> Read[None]:
        parts: list[str] = []
        if (yield from until(lx, self._key_ends, parts.append, limit=MAX_HEADER)) is None:
            raise NoCall
        lx.pos += len(self.key_end)
        key = "".join(parts).strip(" \t\r\n\"'")
        if self.value_open:
            yield from skip_space(lx)
            if (yield from at_marker(lx, self._value_opens)) is None:
                raise NoCall
        call.put(("{" if not seen else ", ") + quote(key) + ": ")
        seen.append(key)
        call.commit()
        yield from self._read_value(lx, call.put, tool.type_of(key), tool, seen)

    def _read_value(self, lx: Lexer, put: Put, kind: ParamType, tool: Tool, seen: list[str]) -> Read[None]:
        led = (yield from peek(lx)) == "\n"
        if led:
            lx.pos += 1
        ends = self._value_ends[led]
        raw: list[str] = []
        if kind.streams:
            put('"')
        take: Put = (lambda text: put(escape(text))) if kind.streams else raw.append
        while True:
            word = yield from until(lx, ends, take)
            if word is None:
                raise NoCall
            if word.endswith(self.value_close):
                lx.pos += len(word)
                break
            if (yield from self._ends_here(lx, word, tool, seen)):
                break
            take(lx.buf[lx.pos])
            lx.pos += 1
        put('"' if kind.streams else to_json("".join(raw), kind))

    def _ends_here(self, lx: Lexer, word: str, tool: Tool, seen: list[str]) -> Read[bool]:
        """Whether a value whose close is missing ends at this marker: before a parameter that the tool has and the
        call has not had yet, or at the end of a call that the block's closer, or the end of the text, follows."""
        size = len(word)
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            if word.endswith(self.param_open):
                key, found, _ = rest.partition(self.key_end)
                plain = key.strip(" \"'")
                if found:
                    return tool.has(plain) and plain not in seen
                if lx.eof or not any(k.startswith(plain) for k in tool.keys):
                    return False
            else:
                after = rest.lstrip()
                if any(after.startswith(w) for w in self.next_open):
                    return True
                if lx.eof or len(rest) == MAX_HEADER:
                    return not after and lx.eof
                if after and not any(w.startswith(after) for w in self.next_open):
                    return False
            yield


_CONTROL = "".join(map(chr, range(0x20)))
