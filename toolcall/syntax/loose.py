"""Gemma's calls: ``call:NAME{key:VALUE,...}`` with unquoted keys and a marker in place of quotes.

Under load it writes ``call:NAME(key=VALUE)``, forgets ``call``, a comma or the brackets of no arguments, doubles
braces, adds a namespace, and quotes as JSON, Python and JavaScript do: all of that is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcall.json_stream import MAX_WORD
from toolcall.json_strings import checked, read_string, read_text
from toolcall.json_text import ESCAPED, WORDS, escape, is_object, number, quote
from toolcall.lexer import (
    MAX_HEADER,
    Lexer,
    Markers,
    NoCall,
    Put,
    Read,
    at_marker,
    at_words,
    begins_name,
    peek,
    skip_space,
    until,
)
from toolcall.output import CallWriter, Output
from toolcall.schema import ParamType, SchemaNode, Tool, to_json
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import ARGUMENT_KEYS

MAX_DEPTH = 64
LOOK_AHEAD = 128
_NULLS = ("null", "None")
_COLON = Markers((":", "="))
_BACKTICK = Markers(("`",), ESCAPED)
_BARE_END = {False: re.compile(r"[,}\]]"), True: re.compile(r"[,}\])]")}
"""By whether the value stands in parentheses."""
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_NAME = re.compile(r"[\w.:$ -]*")
_BAD_KEY = re.compile(r"[{}\[\],]")
_GOES_ON = {
    parens: re.compile(rf"\s*+(?:[,}}\]{')' if parens else ''}]|[\w$./@-]++\s*+[:=])") for parens in (False, True)
}
"""What stands behind a string: a comma, a bracket, or a key whose comma is missing. By whether the arguments stand in
parentheses."""
_KEY_FOLLOWS = re.compile(r"\s*+(?:[}\])\"'`<]|[\w$./@-]++\s*+[:=])")
"""What stands behind a comma that ends a value without quotes."""
_MAY_GO_ON = re.compile(r"\s*+[\w$./@-]*+\s*+")


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
    def _name_end(self) -> Markers:
        return Markers(("{", "(", self.closer))

    @cached_property
    def _quotes(self) -> Markers:
        return Markers((self.quote_mark,), ESCAPED)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.lead,)

    @property
    def first(self) -> str:
        return r"[\w:]"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if (yield from at_marker(lx, self._leading)) is not None:
            return True
        return begins_name((yield from peek(lx)))

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=options.undeclared)
        parts: list[str] = []
        accept = checked(lx, parts, lambda text: _NAME.fullmatch(text) is not None or call.may_be_named(text))
        opening = yield from until(lx, self._name_end, accept, limit=MAX_HEADER)
        if opening is None:
            raise NoCall
        name = "".join(parts)
        tool = call.named(name if call.declares(name) else name.rpartition(":")[2])
        if opening == self.closer:
            call.end()
            return
        lx.pos += 1
        doubled = (yield from skip_space(lx)) == "{"
        lx.pos += doubled
        close = "}" if doubled else _CLOSERS[opening]
        seen = 0
        while (yield from self._next(lx, seen, close, self.closer)):
            key = yield from self._read_key(lx, tool)
            if not seen and (yield from self._read_wrapped(lx, call, tool, key)):
                seen = -1
                continue
            call.put(("{" if not seen else ", ") + quote(key) + ": ")
            seen += 1
            call.commit()
            yield from self._read_value(lx, call.put, tool.schema_of(key), 0, parens=close == ")")
        if doubled and (yield from skip_space(lx)) == _CLOSERS[opening]:
            lx.pos += 1
        if seen >= 0:
            call.put("}" if seen else "{}")
        call.commit()
        call.end()

    def _read_wrapped(self, lx: Lexer, call: CallWriter, tool: Tool, key: str) -> Read[bool]:
        """``{arguments:{...}}`` of a tool that has no such parameter: the arguments themselves."""
        if key not in ARGUMENT_KEYS or not tool.keys or tool.has(key) or (yield from skip_space(lx)) != "{":
            return False
        parts: list[str] = []
        yield from self._read_value(lx, parts.append, tool.schema, 0)
        text = "".join(parts)
        if (yield from skip_space(lx)) not in ("}", ")") or not is_object(text):
            raise NoCall
        call.put(text)
        return True

    def _next(self, lx: Lexer, seen: int, close: str, closer: str = "") -> Read[bool]:
        """Whether another member follows; consumes the comma before it or the closing bracket. closer: stands for
        a bracket that is missing; so does the bracket of what the members stand in."""
        char = yield from skip_space(lx)
        if seen and closer and char == closer[0] and (yield from at_words(lx, (closer,))):
            return False
        if char == "," and seen:
            while char == ",":
                lx.pos += 1
                char = yield from skip_space(lx)
        elif seen and char not in (close, "}", "]") and not (begins_name(char) or char in ("$", '"', "'")):
            raise NoCall
        if char == close:
            lx.pos += 1
            return False
        if seen and char in ("}", "]"):
            return False
        if not char:
            raise NoCall
        return True

    def _read_key(self, lx: Lexer, tool: Tool | None = None) -> Read[str]:
        parts: list[str] = []
        char = yield from peek(lx)
        quoted = True
        if (yield from at_marker(lx, self._quotes)) is not None:
            if (yield from until(lx, self._quotes, parts.append, limit=MAX_HEADER)) is None:
                raise NoCall
            lx.pos += len(self.quote_mark)
        elif char in ('"', "'"):
            parts.append((yield from read_text(lx)))
        else:
            quoted = False
        if quoted and (yield from skip_space(lx)) not in (":", "="):
            raise NoCall
        if not quoted and (yield from until(lx, _COLON, parts.append, limit=MAX_HEADER)) is None:
            raise NoCall
        lx.pos += 1
        if quoted:
            return "".join(parts)
        key = "".join(parts).strip()
        if _BAD_KEY.search(key) and not (tool is not None and tool.has(key)):
            raise NoCall
        return key

    def _read_value(self, lx: Lexer, put: Put, schema: SchemaNode, depth: int, *, parens: bool = False) -> Read[None]:
        char = yield from skip_space(lx)
        if (yield from at_marker(lx, self._quotes)) is not None:
            yield from self._read_quoted(lx, put, schema, self._quotes, parens=parens)
        elif char == "`":
            lx.pos += 1
            yield from self._read_quoted(lx, put, schema, _BACKTICK, parens=parens)
        elif char and char in "{[":
            if depth >= MAX_DEPTH:
                raise NoCall
            lx.pos += 1
            yield from self._read_members(lx, put, schema, (char, depth + 1))
        elif char and char in "\"'":
            if (kind := self._typed(schema)) is None:
                yield from read_string(lx, put)
            else:
                put(to_json((yield from read_text(lx)), kind))
        else:
            yield from self._read_bare(lx, put, schema, (_BARE_END[parens], depth))

    def _typed(self, schema: SchemaNode) -> ParamType | None:
        """The type that a string is read as; None: it is a string."""
        kind = schema.type
        if self.typed_strings:
            return None if kind.streams else kind
        return kind if kind.kinds and not kind.kinds & {"string", "any"} else None

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
            yield from self._read_value(lx, put, schema.child(key), depth if opening == "{" else -depth)
        put(close)

    def _read_quoted(self, lx: Lexer, put: Put, schema: SchemaNode, marks: Markers, *, parens: bool) -> Read[None]:
        """A mark inside the string is a quote of it."""
        kind = self._typed(schema)
        raw: list[str] = []
        if kind is None:
            put('"')
        take: Put = raw.append if kind is not None else lambda text: put(escape(text))
        while True:
            if (word := (yield from until(lx, marks, take, keep=True))) is None:
                raise NoCall
            lx.pos += marks.longest
            if (yield from self._goes_on(lx, _GOES_ON[parens])):
                break
            take('"' if '"' in word else word)
        put('"' if kind is None else to_json("".join(raw), kind))

    def _goes_on(self, lx: Lexer, pattern: re.Pattern[str], behind: int = 0) -> Read[bool]:
        """Whether the call goes on, or ends, so many characters from here: else the mark in front is data."""
        while True:
            rest = lx.buf[lx.pos + behind : lx.pos + behind + LOOK_AHEAD]
            if pattern.match(rest) is not None or rest.lstrip().startswith(self.closer):
                return True
            possible = _MAY_GO_ON.fullmatch(rest) is not None or self.closer.startswith(rest.lstrip())
            if lx.at_end() or len(rest) == LOOK_AHEAD or not possible:
                return possible and len(rest) < LOOK_AHEAD and not rest.strip()
            yield

    def _read_bare(self, lx: Lexer, put: Put, schema: SchemaNode, place: tuple[re.Pattern[str], int]) -> Read[None]:
        end, depth = place
        word: list[str] = []
        while True:
            while (found := end.search(lx.buf, lx.pos)) is None:
                if lx.at_end() or len(lx.buf) - lx.pos > MAX_WORD:
                    raise NoCall
                yield
            word.append(lx.buf[lx.pos : found.start()])
            lx.pos = found.start()
            if sum(map(len, word)) > MAX_WORD:
                raise NoCall
            if found.group() != "," or depth < 0:
                break
            if (yield from self._goes_on(lx, _KEY_FOLLOWS, 1)):
                break
            lx.pos += 1
            word.append(",")
        put(self._bare_json("".join(word).strip(), schema.type))

    def _bare_json(self, word: str, kind: ParamType) -> str:
        """A value without quotes is of a type that is no string, if the schema has one that fits."""
        if self.typed_strings and kind.kinds:
            return to_json(word, kind)
        others = kind.kinds - {"string"}
        if word in _NULLS:
            return "null"
        if others and (value := to_json(word, ParamType(others, kind.texts))) != quote(word):
            return value
        if "string" in kind.kinds:
            return quote(word)
        return WORDS.get(word) or number(word) or quote(word)
