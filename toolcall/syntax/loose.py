"""Gemma's calls: ``call:NAME{key:VALUE,...}`` with unquoted keys and a marker in place of quotes.

Under load it writes ``call:NAME(key=VALUE)``, forgets ``call``, adds a namespace, and quotes as JSON, Python and
JavaScript do: all of that is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcall.json_stream import MAX_WORD
from toolcall.json_strings import checked, read_string
from toolcall.json_text import escape, number, quote
from toolcall.lexer import Lexer, Markers, NoCall, Put, Read, at_marker, at_words, peek, skip_space, until
from toolcall.output import Output
from toolcall.schema import SchemaNode, to_json
from toolcall.syntax.block import Options

MAX_HEADER = 512
MAX_DEPTH = 64
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
_BRACE = Markers(("{", "("))
_COLON = Markers((":", "="))
_BACKTICK = Markers(("`",), '"\\' + "".join(map(chr, range(0x20))))
_BARE_END = {False: re.compile(r"[,}\]]"), True: re.compile(r"[,}\])]")}
"""By whether the value stands in parentheses."""
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_NAME = re.compile(r"[\w.:$ -]*")


@dataclass(frozen=True)
class LooseCalls:
    """lead NAME "{" KEY ":" VALUE ("," KEY ":" VALUE)* "}"; quote_mark: stands on both sides of a string.

    closer: ends the block, and a call whose brace is missing.
    typed_strings: a quoted value is text whose type the schema says (FunctionGemma), not a string by itself.
    """

    lead: str
    quote_mark: str
    closer: str
    typed_strings: bool = False
    foreign: bool = False

    @cached_property
    def _leading(self) -> Markers:
        return Markers((self.lead, ":"))

    @cached_property
    def _quotes(self) -> Markers:
        return Markers((self.quote_mark,), '"\\' + "".join(map(chr, range(0x20))))

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.lead,)

    @property
    def first(self) -> str:
        return r"[\w:]"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if (yield from at_marker(lx, self._leading)) is not None:
            return True
        char = yield from peek(lx)
        return char.isalnum() or char == "_"

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued)
        parts: list[str] = []
        accept = checked(lx, parts, lambda text: _NAME.fullmatch(text) is not None)
        opening = yield from until(lx, _BRACE, accept, limit=MAX_HEADER)
        if opening is None:
            raise NoCall
        name = "".join(parts)
        tool = call.named(name if call.declares(name) else name.rpartition(":")[2])
        lx.pos += 1
        seen = 0
        while (yield from self._next(lx, seen, _CLOSERS[opening], self.closer)):
            key = yield from self._read_key(lx)
            call.put(("{" if not seen else ", ") + quote(key) + ": ")
            seen += 1
            call.commit()
            yield from self._read_value(lx, call.put, tool.schema_of(key), 0, parens=opening == "(")
        call.put("}" if seen else "{}")
        call.commit()
        call.end()

    def _next(self, lx: Lexer, seen: int, close: str, closer: str = "") -> Read[bool]:
        """Whether another member follows; consumes the comma before it or the closing bracket. closer: stands for
        a bracket that is missing."""
        char = yield from skip_space(lx)
        if seen and closer and char == closer[0] and (yield from at_words(lx, (closer,))):
            return False
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

    def _read_value(self, lx: Lexer, put: Put, schema: SchemaNode, depth: int, *, parens: bool = False) -> Read[None]:
        char = yield from skip_space(lx)
        if (yield from at_marker(lx, self._quotes)) is not None:
            yield from self._read_quoted(lx, put, schema, self._quotes)
        elif char == "`":
            lx.pos += 1
            yield from self._read_quoted(lx, put, schema, _BACKTICK)
        elif char and char in "{[":
            if depth >= MAX_DEPTH:
                raise NoCall
            lx.pos += 1
            yield from self._read_members(lx, put, schema, (char, depth + 1))
        elif char and char in "\"'" and not self.typed_strings:
            yield from read_string(lx, put)
        else:
            yield from self._read_bare(lx, put, schema, _BARE_END[parens])

    def _read_members(self, lx: Lexer, put: Put, schema: SchemaNode, place: tuple[str, int]) -> Read[None]:
        opening, depth = place
        close = _CLOSERS[opening]
        put(opening)
        seen = 0
        while (yield from self._next(lx, seen, close)):
            if seen:
                put(", ")
            seen += 1
            key = ""
            if opening == "{":
                key = yield from self._read_key(lx)
                put(quote(key) + ": ")
            yield from self._read_value(lx, put, schema.child(key), depth)
        put(close)

    def _read_quoted(self, lx: Lexer, put: Put, schema: SchemaNode, marks: Markers) -> Read[None]:
        typed = self.typed_strings and not schema.type.streams
        raw: list[str] = []
        if not typed:
            put('"')
        take: Put = raw.append if typed else lambda text: put(escape(text))
        if (yield from until(lx, marks, take, keep=True)) is None:
            raise NoCall
        lx.pos += marks.longest
        put(to_json("".join(raw), schema.type) if typed else '"')

    def _read_bare(self, lx: Lexer, put: Put, schema: SchemaNode, end: re.Pattern[str]) -> Read[None]:
        while (found := end.search(lx.buf, lx.pos)) is None:
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
            put(_WORDS.get(word) or number(word) or quote(word))
