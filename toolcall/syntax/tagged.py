"""Calls written as tags with one element for each argument: ``<function=f><parameter=k>v</parameter></function>``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcall.json_strings import checked
from toolcall.json_text import escape, quote
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, at_marker, peek, skip_space, until
from toolcall.output import CallWriter, Output
from toolcall.schema import ANY, STRING, ParamType, Tool, to_json
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import read_arguments
from toolcall.syntax.nested import nested_json

MAX_HEADER = 512
"""A name or key longer than this is none."""


@dataclass(frozen=True)
class TaggedCalls:
    """call_open NAME name_end (param_open KEY key_end VALUE value_close)* call_close.

    NAME and KEY may stand in quotes and may be followed by attributes (``name="f" index="1"``); ``string="true"``
    and ``type="..."`` of a key override the schema. call_open: "" where the name follows the block's opener directly.
    self_close: ends the header of a call without arguments. name_stops: markers that end the name and are not
    consumed. next_open: markers that begin another call or end the block, and so end a call whose call_close is
    missing. loose_close: a value may also end at another parameter or at the end of the call. close_by_key:
    value_close is followed by KEY and key_end. cdata: a value may stand in ``<![CDATA[ ]]>``.
    nested: (namespace) complex values are elements of their own, see ``nested_json``. object_body: the arguments
    may also stand as one JSON object.
    """

    call_open: str
    name_end: str
    param_open: str
    key_end: str
    value_close: str
    call_close: str
    value_open: str = ""
    self_close: str = ""
    name_stops: tuple[str, ...] = ()
    next_open: tuple[str, ...] = ()
    loose_close: bool = True
    close_by_key: bool = False
    cdata: bool = False
    nested: str = ""
    trim_newlines: bool = True
    object_body: bool = False
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open,))

    @cached_property
    def _name_ends(self) -> Markers:
        return Markers((self.name_end, self.self_close, *self.name_stops))

    @cached_property
    def _members(self) -> Markers:
        return Markers((self.call_close, self.param_open))

    @cached_property
    def _key_ends(self) -> Markers:
        return Markers((self.key_end,))

    @cached_property
    def _value_opens(self) -> Markers:
        return Markers((self.value_open, "\\n" + self.value_open))

    @cached_property
    def _loose(self) -> tuple[str, ...]:
        return ("\n" + self.param_open, "\n" + self.call_close) if self.loose_close else ()

    @cached_property
    def _followers(self) -> tuple[str, ...]:
        return (self.param_open, self.call_close, *self.next_open)

    @cached_property
    def _ends(self) -> tuple[Markers, Markers]:
        """Where a value ends: without and with a layout newline on either side."""
        return _ends_for(self.value_close, self._loose)

    @property
    def first(self) -> str:
        return re.escape(self.call_open[:2])

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if self.call_open:
            return (yield from at_marker(lx, self._opening)) is not None
        char = yield from peek(lx)
        return bool(char) and char not in "{[<"

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued)
        tool, closed = yield from self._read_name(lx, out, call)
        seen: list[str] = []
        while not closed:
            char = yield from skip_space(lx)
            if char == "":
                if lx.cut or not (seen or not tool.keys):
                    raise NoCall
                break
            word = yield from at_marker(lx, self._members)
            if word == self.call_close:
                break
            if word is None:
                if self.object_body and char == "{" and not seen:
                    yield from self._read_object(lx, call)
                    return
                if seen and (yield from at_words(lx, self.next_open)):
                    break
                raise NoCall
            yield from self._read_param(lx, call, tool, seen)
        call.put("}" if seen else "{}")
        call.written = True
        call.end()

    def _read_object(self, lx: Lexer, call: CallWriter) -> Read[None]:
        yield from read_arguments(lx, call)
        call.end()
        yield from skip_space(lx)
        yield from at_marker(lx, self._members)

    def _read_name(self, lx: Lexer, out: Output, call: CallWriter) -> Read[tuple[Tool, bool]]:
        parts: list[str] = []
        put = checked(lx, parts, lambda text: out.tools.may_begin(first_attribute(text)[0]))
        word = yield from until(lx, self._name_ends, put, limit=MAX_HEADER)
        if word is None:
            raise NoCall
        if word not in self.name_stops:
            lx.pos += len(word)
        return call.named(first_attribute("".join(parts))[0]), word == self.self_close

    def _read_param(self, lx: Lexer, call: CallWriter, tool: Tool, seen: list[str]) -> Read[None]:
        parts: list[str] = []
        if (yield from until(lx, self._key_ends, parts.append, limit=MAX_HEADER)) is None:
            raise NoCall
        lx.pos += len(self.key_end)
        key, attributes = first_attribute("".join(parts))
        if self.value_open:
            yield from skip_space(lx)
            if (yield from at_marker(lx, self._value_opens)) is None:
                raise NoCall
        call.put(("{" if not seen else ", ") + quote(key) + ": ")
        seen.append(key)
        call.commit()
        kind = attribute_type(attributes) or tool.type_of(key)
        yield from self._read_value(lx, call.put, _Value(kind, tool, seen, tool.schema_of(key)))

    def _read_value(self, lx: Lexer, put: Put, value: _Value) -> Read[None]:
        close, ends = self.value_close, self._ends
        if self.close_by_key:
            close += value.seen[-1] + self.key_end
            ends = _ends_for(close, self._loose)
        if self.cdata and (yield from at_marker(lx, _CDATA)) is not None:
            close = "]]>" + close
            ends = _ends_for(close, ())
        led = self.trim_newlines and (yield from peek(lx)) == "\n"
        if led:
            lx.pos += 1
        streams = value.kind.streams
        raw: list[str] = []
        if streams:
            put('"')
        take: Put = (lambda text: put(escape(text))) if streams else raw.append
        while True:
            word = yield from until(lx, ends[led], take, keep=True)
            if word is None:
                raise NoCall
            if word.endswith(close):
                if (yield from self._closes_here(lx, len(word))):
                    lx.pos += len(word)
                    break
            elif (yield from self._ends_here(lx, word, value)):
                break
            take(lx.buf[lx.pos])
            lx.pos += 1
        if streams:
            put('"')
        else:
            text = "".join(raw)
            nested = self.nested and self.nested in text
            put(nested_json(text, self.nested, value.schema) if nested else to_json(text, value.kind))

    def _closes_here(self, lx: Lexer, size: int) -> Read[bool]:
        """Whether this close ends the value, and is not a part of it: only if the call goes on, or ends, behind it."""
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            after = rest.lstrip(SPACE)
            if any(after.startswith(w) for w in self._followers):
                return True
            possible = any(w.startswith(after) for w in self._followers)
            if not possible or len(rest) == MAX_HEADER or lx.at_end():
                return possible and len(rest) < MAX_HEADER
            yield

    def _ends_here(self, lx: Lexer, word: str, value: _Value) -> Read[bool]:
        """Whether a value whose close is missing ends at this marker: before a parameter that the tool has and the
        call has not had yet, or at the end of a call that the block's closer, or the end of the text, follows."""
        size = len(word)
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            if word.endswith(self.param_open):
                header, found, _ = rest.partition(self.key_end)
                key = first_attribute(header)[0]
                if found:
                    return value.tool.has(key) and key not in value.seen
                if lx.at_end() or len(rest) == MAX_HEADER or not value.tool.may_have(key):
                    return False
            else:
                after = rest.lstrip()
                if any(after.startswith(w) for w in self.next_open):
                    return True
                if lx.at_end() or len(rest) == MAX_HEADER:
                    return lx.eof and not after
                if after and not any(w.startswith(after) for w in self.next_open):
                    return False
            yield


@dataclass(frozen=True, slots=True)
class _Value:
    """The parameter whose value is read; seen: the keys of the call so far, this one last."""

    kind: ParamType
    tool: Tool
    seen: list[str]
    schema: Any


_CONTROL = "".join(map(chr, range(0x20)))
_CDATA = Markers(("<![CDATA[",))


def _ends_for(close: str, loose: tuple[str, ...]) -> tuple[Markers, Markers]:
    stop = '"\\' + _CONTROL
    return Markers((close, *loose), stop), Markers((close, *loose, "\n" + close), stop)


def first_attribute(header: str) -> tuple[str, str]:
    """``"a" x="y"`` -> ("a", ' x="y"'); text without quotes is all name."""
    plain = header.lstrip()
    if plain[:1] in ('"', "'"):
        name, _, rest = plain[1:].partition(plain[0])
        return unescape(name), rest
    return unescape(plain.rstrip()), ""


def unescape(text: str) -> str:
    """The two entities that attribute values are written with."""
    return text.replace("&quot;", '"').replace("&amp;", "&") if "&" in text else text


def attribute_type(attributes: str) -> ParamType | None:
    """The type that a key's attributes say, None if they say none."""
    plain = attributes.replace(" ", "").replace("'", '"')
    if 'string="true"' in plain or 'type="string"' in plain:
        return STRING
    return ANY if 'string="' in plain or 'type="' in plain else None


def at_words(lx: Lexer, words: tuple[str, ...]) -> Read[bool]:
    """Whether one of the words stands here; consumes nothing."""
    while True:
        if any(lx.buf.startswith(w, lx.pos) for w in words):
            return True
        rest = lx.buf[lx.pos :]
        if lx.at_end() or not any(w.startswith(rest) for w in words):
            return False
        yield
