"""Gemma's calls: ``call:NAME{key:VALUE,...}`` with unquoted keys and a marker in place of quotes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcall.json_stream import MAX_WORD
from toolcall.json_strings import checked, read_string
from toolcall.json_text import escape, number, quote
from toolcall.lexer import Lexer, Markers, NoCall, Put, Read, at_marker, skip_space, until
from toolcall.output import Output
from toolcall.schema import SchemaNode, to_json
from toolcall.syntax.block import Options

MAX_HEADER = 512
MAX_DEPTH = 64
_WORDS = frozenset({"true", "false", "null"})
_BRACE = Markers(("{",))
_COLON = Markers((":",))
_BARE_END = re.compile(r"[,}\]]")


@dataclass(frozen=True)
class LooseCalls:
    """lead NAME "{" KEY ":" VALUE ("," KEY ":" VALUE)* "}"; quote_mark: stands on both sides of a string.

    typed_strings: a quoted value is text whose type the schema says (FunctionGemma), not a string by itself.
    """

    lead: str
    quote_mark: str
    typed_strings: bool = False
    foreign: bool = False

    @cached_property
    def _leading(self) -> Markers:
        return Markers((self.lead,))

    @cached_property
    def _quotes(self) -> Markers:
        return Markers((self.quote_mark,), '"\\' + "".join(map(chr, range(0x20))))

    @property
    def first(self) -> str:
        return re.escape(self.lead[:2])

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        return (yield from at_marker(lx, self._leading)) is not None

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued)
        parts: list[str] = []
        if (yield from until(lx, _BRACE, checked(lx, parts, out.tools.may_begin), limit=MAX_HEADER)) is None:
            raise NoCall
        tool = call.named("".join(parts))
        lx.pos += 1
        seen = 0
        while (yield from self._next(lx, seen, "}")):
            key = yield from self._read_key(lx)
            call.put(("{" if not seen else ", ") + quote(key) + ": ")
            seen += 1
            call.commit()
            yield from self._read_value(lx, call.put, tool.schema_of(key), 0)
        call.put("}" if seen else "{}")
        call.commit()
        call.end()

    def _next(self, lx: Lexer, seen: int, close: str) -> Read[bool]:
        """Whether another member follows; consumes the comma before it or the closing bracket."""
        char = yield from skip_space(lx)
        if char == "," and seen:
            lx.pos += 1
            char = yield from skip_space(lx)
        elif seen and char != close:
            raise NoCall
        if char == close:
            lx.pos += 1
            return False
        if not char:
            raise NoCall
        return True

    def _read_key(self, lx: Lexer) -> Read[str]:
        parts: list[str] = []
        if (yield from at_marker(lx, self._quotes)) is not None:
            if (yield from until(lx, self._quotes, parts.append, limit=MAX_HEADER)) is None:
                raise NoCall
            lx.pos += len(self.quote_mark)
            yield from skip_space(lx)
        if (yield from until(lx, _COLON, parts.append, limit=MAX_HEADER)) is None:
            raise NoCall
        lx.pos += 1
        return "".join(parts).strip().strip("\"'")

    def _read_value(self, lx: Lexer, put: Put, schema: SchemaNode, depth: int) -> Read[None]:
        char = yield from skip_space(lx)
        if (yield from at_marker(lx, self._quotes)) is not None:
            yield from self._read_quoted(lx, put, schema)
        elif char and char in "{[":
            if depth >= MAX_DEPTH:
                raise NoCall
            lx.pos += 1
            yield from self._read_members(lx, put, schema, (char, depth + 1))
        elif char == '"' and not self.typed_strings:
            yield from read_string(lx, put)
        else:
            yield from self._read_bare(lx, put, schema)

    def _read_members(self, lx: Lexer, put: Put, schema: SchemaNode, place: tuple[str, int]) -> Read[None]:
        opening, depth = place
        close = "}" if opening == "{" else "]"
        put(opening)
        seen = 0
        while (yield from self._next(lx, seen, close)):
            put(", " if seen else "")
            seen += 1
            key = ""
            if opening == "{":
                key = yield from self._read_key(lx)
                put(quote(key) + ": ")
            yield from self._read_value(lx, put, schema.child(key), depth)
        put(close)

    def _read_quoted(self, lx: Lexer, put: Put, schema: SchemaNode) -> Read[None]:
        typed = self.typed_strings and not schema.type.streams
        raw: list[str] = []
        if not typed:
            put('"')
        take: Put = raw.append if typed else lambda text: put(escape(text))
        if (yield from until(lx, self._quotes, take, keep=True)) is None:
            raise NoCall
        lx.pos += len(self.quote_mark)
        put(to_json("".join(raw), schema.type) if typed else '"')

    def _read_bare(self, lx: Lexer, put: Put, schema: SchemaNode) -> Read[None]:
        while (found := _BARE_END.search(lx.buf, lx.pos)) is None:
            if lx.at_end() or len(lx.buf) - lx.pos > MAX_WORD:
                raise NoCall
            yield
        if found.start() - lx.pos > MAX_WORD:
            raise NoCall
        word = lx.buf[lx.pos : found.start()].strip()
        lx.pos = found.start()
        if self.typed_strings and schema.type.kinds:
            put(to_json(word, schema.type))
        else:
            put(word if word in _WORDS else number(word) or quote(word))
