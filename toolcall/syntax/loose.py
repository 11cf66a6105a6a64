"""Gemma's calls: ``call:NAME{key:VALUE,...}`` with unquoted keys and a marker in place of quotes.

Under load it writes ``call:NAME(key=VALUE)``, forgets ``call``, a comma or the brackets of no arguments, doubles
braces, adds a namespace, and quotes as JSON, Python and JavaScript do: all of that is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

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
from toolcall.syntax.loose_strings import QuotedString

MAX_DEPTH = 64
LOOK_AHEAD = 128
_NULLS = ("null", "None")
_COLON = Markers((":", "="))
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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a value stands. around: the brackets that it stands in, the innermost first, as they are closed. others:
    the call's parameters that may follow."""

    around: str
    others: Collection[str] = ()

    @property
    def parens(self) -> bool:
        return self.around == ")"

    def inside(self, close: str) -> _Place:
        if len(self.around) > MAX_DEPTH:
            raise NoCall
        return _Place(close + self.around)


@dataclass(frozen=True)
class LooseCalls:
    """lead NAME "{" KEY ":" VALUE ("," KEY ":" VALUE)* "}"; quote_mark: stands on both sides of a string.

    opener: begins the block. closer: ends it, and a call whose brace is missing.
    typed_strings: a quoted value is text whose type the schema says (FunctionGemma), not a string by itself.
    """

    lead: str
    quote_mark: str
    opener: str
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
        return Markers((self.quote_mark,))

    @cached_property
    def _in_string(self) -> Mapping[str, Markers]:
        return {mark: Markers((mark, self.opener, self.closer), ESCAPED) for mark in (self.quote_mark, "`")}

    @cached_property
    def _bare_end(self) -> Mapping[bool, re.Pattern[str]]:
        """What ends a value without quotes, by whether it stands in parentheses."""
        mark = re.escape(self.quote_mark)
        return {parens: re.compile(rf"[,}}\]{')' if parens else ''}]|{mark}") for parens in (False, True)}

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
        others = set(tool.keys)
        while (yield from self._next(lx, seen, close)):
            key = yield from self._read_key(lx, tool)
            others.discard(key)
            if not seen and (yield from self._read_wrapped(lx, call, tool, key)):
                seen = -1
                continue
            call.put(("{" if not seen else ", ") + quote(key) + ": ")
            seen += 1
            call.commit()
            yield from self._read_value(lx, call.put, tool.schema_of(key), _Place(close, others))
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
        yield from self._read_value(lx, parts.append, tool.schema, _Place("}"))
        text = "".join(parts)
        if (yield from skip_space(lx)) not in ("}", ")") or not is_object(text):
            raise NoCall
        call.put(text)
        return True

    def _next(self, lx: Lexer, seen: int, close: str) -> Read[bool]:
        """Whether another member follows; consumes the comma before it or the closing bracket. What ends the block
        stands for a bracket that is missing; so does the bracket of what the members stand in."""
        char = yield from skip_space(lx)
        if seen and char == self.closer[0] and (yield from at_words(lx, (self.closer,))):
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

    def _read_value(self, lx: Lexer, put: Put, schema: SchemaNode, place: _Place) -> Read[None]:
        char = yield from skip_space(lx)
        if (yield from at_marker(lx, self._quotes)) is not None:
            yield from self._read_quoted(lx, put, schema.type, self._string(self.quote_mark, place))
        elif char == "`":
            lx.pos += 1
            yield from self._read_quoted(lx, put, schema.type, self._string(char, place))
        elif char and char in "{[":
            lx.pos += 1
            yield from self._read_members(lx, put, schema, place.inside(_CLOSERS[char]))
        elif char and char in "\"'":
            if (kind := self._typed(schema.type)) is None:
                yield from read_string(lx, put)
            else:
                put(to_json((yield from read_text(lx)), kind))
        else:
            yield from self._read_bare(lx, put, schema.type, place)

    def _typed(self, kind: ParamType) -> ParamType | None:
        """The type that a string is read as; None: it is a string."""
        if self.typed_strings:
            return None if kind.streams else kind
        return kind if kind.kinds and not kind.kinds & {"string", "any"} else None

    def _read_members(self, lx: Lexer, put: Put, schema: SchemaNode, place: _Place) -> Read[None]:
        close = place.around[0]
        put("{" if close == "}" else "[")
        seen = 0
        while (yield from self._next(lx, seen, close)):
            if seen:
                put(", ")
            seen += 1
            key = ""
            if close == "}":
                key = yield from self._read_key(lx)
                put(quote(key) + ": ")
            yield from self._read_value(lx, put, schema.child(key), place)
        put(close)

    def _string(self, mark: str, place: _Place) -> QuotedString:
        goes_on = partial(self._goes_on, pattern=_GOES_ON[place.parens])
        words = (mark, self.opener, self.closer)
        return QuotedString(self._in_string[mark], words, place.around, place.others, goes_on)

    def _read_quoted(self, lx: Lexer, put: Put, schema: ParamType, string: QuotedString) -> Read[None]:
        kind = self._typed(schema)
        raw: list[str] = []
        if kind is None:
            put('"')
        yield from string.read(lx, raw.append if kind is not None else lambda text: put(escape(text)))
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

    def _read_bare(self, lx: Lexer, put: Put, schema: ParamType, place: _Place) -> Read[None]:
        end = self._bare_end[place.parens]
        word: list[str] = []
        while True:
            while (found := end.search(lx.buf, lx.pos)) is None:
                if lx.at_end() or len(lx.buf) - lx.pos > MAX_WORD:
                    raise NoCall
                yield
            word.append(lx.buf[lx.pos : found.start()])
            lx.pos = found.start()
            mark = found.group()
            if sum(map(len, word)) > MAX_WORD:
                raise NoCall
            if mark == self.quote_mark:  # the end of a string whose beginning is missing
                lx.pos += len(mark)
                if (yield from self._goes_on(lx, _GOES_ON[place.parens])):
                    text, kind = "".join(word).strip(), self._typed(schema)
                    put(quote(text) if kind is None else to_json(text, kind))
                    return
                mark = '"' if '"' in mark else mark
            elif mark != "," or place.around[0] == "]" or (yield from self._goes_on(lx, _KEY_FOLLOWS, 1)):
                break
            else:
                lx.pos += 1
            word.append(mark)
        put(self._bare_json("".join(word).strip(), schema))

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
