"""Calls written as tags with one element for each argument: ``<function=f><parameter=k>v</parameter></function>``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from toolcall.json_strings import checked
from toolcall.json_text import escape, is_object, quote
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, at_marker, at_words, peek, skip_space, until
from toolcall.output import CallWriter, Output
from toolcall.schema import ANY, ParamType, Tool, to_json
from toolcall.syntax.attributes import attribute_type, first_attribute, may_be_label
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import ARGUMENT_KEYS, read_arguments
from toolcall.syntax.nested import nested_json
from toolcall.syntax.python_calls import read_keywords

MAX_HEADER = 512
"""A name or key longer than this is none."""


@dataclass(frozen=True)
class TaggedCalls:
    """call_open NAME name_end (param_open KEY key_end VALUE value_close)* call_close.

    NAME and KEY may stand in quotes, behind ``name=``, and may be followed by attributes (``"f" index="1"``);
    ``string="true"`` and ``type="..."`` of a key override the schema. call_open: "" where the name follows the block's
    opener directly. call_opens, param_opens, call_closes, value_closes: other spellings. self_close: ends the header
    of a call without arguments.
    name_stops: markers that end the name and are not consumed. header_stops: the same for a header whose end is
    missing. next_open: markers that begin another call or end the block, and so end a call whose call_close is
    missing. loose_close: a value may also end at another parameter or at the end of the call. close_by_key:
    value_close is followed by KEY and key_end. cdata: a value may stand in ``<![CDATA[ ]]>``.
    nested: (namespace) complex values are elements of their own, see ``nested_json``. object_body: the arguments
    may also stand as one JSON object, or as Python's keyword arguments in parentheses. shared_close: call_close closes
    the block.
    """

    call_open: str
    name_end: str
    param_open: str
    key_end: str
    value_close: str
    call_close: str
    call_opens: tuple[str, ...] = ()
    param_opens: tuple[str, ...] = ()
    call_closes: tuple[str, ...] = ()
    value_closes: tuple[str, ...] = ()
    value_open: str = ""
    self_close: str = ""
    name_stops: tuple[str, ...] = ()
    header_stops: tuple[str, ...] = ()
    next_open: tuple[str, ...] = ()
    loose_close: bool = True
    close_by_key: bool = False
    cdata: bool = False
    nested: str = ""
    trim_newlines: bool = True
    object_body: bool = False
    shared_close: bool = False
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open, *self.call_opens))

    @cached_property
    def _name_ends(self) -> Markers:
        return Markers((self.name_end, self.self_close, *self.name_stops, *self.header_stops))

    @cached_property
    def _members(self) -> Markers:
        return Markers((self.call_close, *self.call_closes, self.param_open, *self.param_opens))

    @cached_property
    def _key_ends(self) -> Markers:
        return Markers((self.key_end, *self.header_stops))

    @cached_property
    def _key_end(self) -> Markers:
        return Markers((self.key_end,))

    @cached_property
    def _value_opens(self) -> Markers:
        return Markers((self.value_open, "\\n" + self.value_open))

    @cached_property
    def _loose(self) -> tuple[str, ...]:
        ends = (self.param_open, self.call_close) if self.loose_close else ()
        return (*ends, *("\n" + e for e in ends))

    @cached_property
    def _followers(self) -> tuple[str, ...]:
        return (self.param_open, self.call_close, *self.call_closes, *self.next_open)

    @cached_property
    def _closing(self) -> tuple[str, ...]:
        """What may stand between the end of the last value and the end of the block."""
        return (self.call_close, *self.call_closes, *(w for w in self.next_open if w.startswith("</")))

    @cached_property
    def _ends(self) -> tuple[Markers, Markers]:
        """Where a value ends: without and with a layout newline on either side."""
        return _ends_for((self.value_close, *self.value_closes), (*self._loose, self._reopens))

    @cached_property
    def _reopens(self) -> str:
        """The beginning of a tag that value_close would close: a value that holds one may hold that, too."""
        plain = self.value_close.startswith("</") and not self.close_by_key
        return "<" + self.value_close[2:].rstrip(">") if plain else ""

    @cached_property
    def _value_close(self) -> Markers:
        return Markers((self.value_close, *self.value_closes))

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.call_open, *self.call_opens, self.call_close)

    @property
    def first(self) -> str:
        return "|".join({re.escape(o[:2]) for o in (self.call_open, *self.call_opens)})

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
            if word == self.call_close or word in self.call_closes:
                lx.pos -= len(word) if self.shared_close else 0
                break
            if word is None:
                if self.object_body and char in "{(" and not seen:
                    yield from self._read_object(lx, call, char)
                    return
                if seen and (yield from at_words(lx, self.next_open)):
                    break
                raise NoCall
            if (yield from self._read_param(lx, call, tool, seen)):
                yield from at_marker(lx, self._members)
                call.end()
                return
        call.put("}" if seen else "{}")
        call.written = True
        call.end()

    def _read_object(self, lx: Lexer, call: CallWriter, char: str) -> Read[None]:
        if char == "{":
            yield from read_arguments(lx, call)
        else:
            lx.pos += 1
            yield from read_keywords(lx, call)
        call.end()
        yield from skip_space(lx)
        yield from at_marker(lx, self._members)

    def _read_name(self, lx: Lexer, out: Output, call: CallWriter) -> Read[tuple[Tool, bool]]:
        parts: list[str] = []
        put = checked(lx, parts, lambda text: may_be_label(text) or out.tools.may_begin(first_attribute(text)[0]))
        word = yield from until(lx, self._name_ends, put, limit=MAX_HEADER)
        if word is None:
            raise NoCall
        if word not in (*self.name_stops, *self.header_stops):
            lx.pos += len(word)
        return call.named(first_attribute("".join(parts))[0]), word == self.self_close

    def _read_param(self, lx: Lexer, call: CallWriter, tool: Tool, seen: list[str]) -> Read[bool]:
        """Returns whether the arguments are whole: they were the one parameter's value."""
        key, attributes = yield from self._read_key(lx)
        if self.value_open and not (yield from self._begins_value(lx, tool.has(key))):
            return False
        seen.append(key)
        value = _Value(attribute_type(attributes) or tool.type_of(key), tool, seen, tool.schema_of(key))
        head = ("{" if len(seen) == 1 else ", ") + quote(key) + ": "
        if head[0] == "{" and key in ARGUMENT_KEYS and tool.keys and not tool.has(key):
            return (yield from self._read_wrapped(lx, call, value, head))
        call.put(head)
        call.commit()
        yield from self._read_value(lx, call.put, value)
        return False

    def _read_wrapped(self, lx: Lexer, call: CallWriter, value: _Value, head: str) -> Read[bool]:
        """``<parameter=arguments>{"city": "Oslo"}</parameter>`` of a tool that has no such parameter."""
        parts: list[str] = []
        yield from self._read_value(lx, parts.append, replace(value, kind=ANY))
        text = "".join(parts)
        yield from skip_space(lx)
        whole = is_object(text) and (yield from at_words(lx, (self.call_close,)))
        call.put(text if whole else head + text)
        call.commit()
        return whole

    def _read_key(self, lx: Lexer) -> Read[tuple[str, str]]:
        """The key and its attributes. The marks around it may stand there twice."""
        parts: list[str] = []
        while True:
            word = yield from until(lx, self._key_ends, parts.append, limit=MAX_HEADER)
            if word is None:
                raise NoCall
            if word == self.key_end or "".join(parts).strip():
                break
            lx.pos += len(word)
        if word == self.key_end:
            lx.pos += len(word)
        header = "".join(parts)
        while self.value_open and header.startswith(self.param_open):
            header = header[len(self.param_open) :]
        return first_attribute(header)

    def _begins_value(self, lx: Lexer, known: bool) -> Read[bool]:
        """Consumes the opener of a value. It may be missing if the key is one of the tool's; a key without any
        value is left out."""
        yield from skip_space(lx)
        while (yield from at_marker(lx, self._key_end)) is not None:
            yield from skip_space(lx)
        if (yield from at_marker(lx, self._value_opens)) is not None:
            return True
        if not known or lx.buf[lx.pos :] in self._value_opens.prefixes:
            raise NoCall
        return not (yield from at_words(lx, (self.param_open, self.call_close)))

    def _read_value(self, lx: Lexer, put: Put, value: _Value) -> Read[None]:
        closes, ends = (self.value_close, *self.value_closes), self._ends
        if self.close_by_key:
            closes = (self.value_close + value.seen[-1] + self.key_end,)
            ends = _ends_for(closes, self._loose)
        if self.cdata and (yield from at_marker(lx, _CDATA)) is not None:
            closes = tuple("]]>" + close for close in closes)
            ends = _ends_for(closes, ())
        led = self.trim_newlines and (yield from peek(lx)) == "\n"
        if led:
            lx.pos += 1
        streams = value.kind.streams
        raw: list[str] = []
        quoted = opened = False
        if streams:
            put('"')
        take: Put = (lambda text: put(escape(text))) if streams else raw.append
        while True:
            word = yield from until(lx, ends[led], take, keep=True)
            if word is None:
                raise NoCall
            if word == self._reopens:
                opened = True
            elif word.endswith(closes):
                if (yield from self._closes_here(lx, len(word), quoted, twice=not opened)):
                    lx.pos += len(word)
                    break
            elif (yield from self._ends_here(lx, word, value)):
                break
            quoted = quoted or word.endswith((self.param_open, self.call_close))
            take(lx.buf[lx.pos])
            lx.pos += 1
        if streams:
            put('"')
        else:
            text = "".join(raw)
            nested = self.nested and self.nested in text
            put(nested_json(text, self.nested, value.schema) if nested else to_json(text, value.kind))
        if self._reopens and not opened:
            yield from skip_space(lx)
            while (yield from at_marker(lx, self._value_close)) is not None:
                yield from skip_space(lx)

    def _closes_here(self, lx: Lexer, size: int, quoted: bool, *, twice: bool) -> Read[bool]:
        """Whether this close ends the value, and is not a part of it: only if the call goes on, or ends, behind it.
        quoted: the value holds tags of calls, so that a whole call inside it may end here. twice: it may come again."""
        again = self.value_close if twice and self._reopens else ""
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            after = rest.lstrip(SPACE)
            while again and after.startswith(again):
                after = after[len(again) :].lstrip(SPACE)
            if any(after.startswith(w) for w in self._followers):
                return not quoted or not (yield from self._goes_on(lx, size))
            possible = any(w.startswith(after) for w in (*self._followers, again))
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
                    return not (yield from self._goes_on(lx, size))
                if lx.at_end() or len(rest) == MAX_HEADER:
                    return lx.eof and not after
                if after and not any(w.startswith(after) for w in self.next_open):
                    return False
            yield

    def _goes_on(self, lx: Lexer, size: int) -> Read[bool]:
        """Whether a value goes on behind the end of a call inside it: all closers are followed by one of a value."""
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            after, shorter = rest.lstrip(SPACE), True
            while shorter:
                shorter = False
                for word in self._closing:
                    if after.startswith(word):
                        after, shorter = after[len(word) :].lstrip(SPACE), True
            if after.startswith(self.value_close):
                return True
            words = (self.value_close, *self._closing)
            if len(rest) == MAX_HEADER or not any(w.startswith(after) for w in words) or lx.at_end():
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


def _ends_for(closes: tuple[str, ...], loose: tuple[str, ...]) -> tuple[Markers, Markers]:
    stop = '"\\' + _CONTROL
    return Markers((*closes, *loose), stop), Markers((*closes, *loose, *("\n" + close for close in closes)), stop)
