"""Calls written as a name and then the arguments as a JSON object: ``NAME<sep>{...}``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcall.json_strings import checked
from toolcall.lexer import (
    MAX_HEADER,
    SPACE,
    Lexer,
    Markers,
    NoCall,
    Read,
    at_marker,
    begins_name,
    ignore,
    peek,
    skip_space,
    until,
)
from toolcall.output import CallWriter, Output
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import (
    ARGUMENT_KEYS,
    AROUND_KEYS,
    NAME_KEYS,
    OTHER_KEYS,
    JsonCalls,
    read_arguments,
)
from toolcall.syntax.python_calls import read_keywords

_KEY = re.compile(r"\w++")


@dataclass(frozen=True)
class NamedJson:
    """call_open prefix NAME name_end leads ARGUMENTS trails close.

    call_open: "" where the name follows the block's opener or another call directly. prefixes: what may stand
    before the name. name_ends: consumed; name_stops: not consumed. id_marks: markers after the name that begin an
    id, which is skipped up to one of name_ends. leads, trails: layout around the arguments (a fence). closes: ends
    the call; may be missing. wrapped: the arguments are a whole call object, with the name again. python: they may
    also be Python's keyword arguments in parentheses.
    """

    call_open: str = ""
    prefixes: tuple[str, ...] = ()
    name_ends: tuple[str, ...] = ()
    name_stops: tuple[str, ...] = ()
    id_marks: tuple[str, ...] = ()
    leads: tuple[str, ...] = ()
    trails: tuple[str, ...] = ()
    closes: tuple[str, ...] = ()
    wrapped: bool = False
    python: bool = False
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open,))

    @cached_property
    def _prefixes(self) -> Markers:
        return Markers(self.prefixes)

    @cached_property
    def _name(self) -> Markers:
        return Markers((*self.name_ends, *self.name_stops, *self.id_marks, *self.closes))

    @cached_property
    def _name_ends(self) -> Markers:
        return Markers(self.name_ends)

    @cached_property
    def _after_id(self) -> Markers:
        return Markers((*self.name_ends, *self.name_stops))

    @cached_property
    def _leads(self) -> Markers:
        return Markers(self.leads)

    @cached_property
    def _trails(self) -> Markers:
        return Markers((*self.trails, *self.closes))

    @cached_property
    def _closing(self) -> Markers:
        return Markers(self.closes)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.call_open, *self.trails, *self.closes)

    @property
    def first(self) -> str:
        return re.escape(self.call_open[:2]) or r"\w"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if not self.call_open:
            return begins_name((yield from peek(lx)))
        if (yield from at_marker(lx, self._opening)) is None:
            return False
        while (yield from skip_space(lx)) and (yield from at_marker(lx, self._opening)) is not None:
            pass  # it stands there twice
        return True

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=options.undeclared)
        if self.prefixes:
            yield from skip_space(lx)
            word = yield from at_marker(lx, self._prefixes)
            if word is not None and (yield from self._skip_again(lx)) == "{":  # the name of a tool after all
                call.named(next(word.removesuffix(end) for end in self.name_ends if word.endswith(end)))
                yield from self._read_arguments(lx, call)
                call.end()
                yield from self._close(lx)
                return
        if self.wrapped:
            yield from self._read_wrapped(lx, out, call, options)
            return
        parts: list[str] = []
        word = yield from until(lx, self._name, checked(lx, parts, call.may_be_named), limit=MAX_HEADER)
        call.named("".join(parts))
        yield from self._after_name(lx, word)
        yield from self._read_arguments(lx, call)
        call.end()
        yield from self._close(lx)

    def _read_wrapped(self, lx: Lexer, out: Output, call: CallWriter, options: Options) -> Read[None]:
        """The whole call object, or just the arguments, of the tool that the header names."""
        parts: list[str] = []
        word = yield from until(lx, self._name, parts.append, limit=MAX_HEADER)
        if word not in self.name_ends:
            raise NoCall
        lx.pos += len(word or "")
        name = "".join(parts)
        if (yield from skip_space(lx)) == "{" and (yield from self._is_call(lx)):
            out.drop_call()
            yield from JsonCalls(fallback=name).read(lx, out, options)
        else:
            call.named(name)
            yield from self._read_arguments(lx, call)
            call.end()
        yield from self._close(lx)

    def _is_call(self, lx: Lexer) -> Read[bool]:
        """Whether the object that begins here is a call, by its first key."""
        while True:
            rest = lx.buf[lx.pos + 1 : lx.pos + MAX_HEADER].lstrip(SPACE + "\"'")
            key = _KEY.match(rest)
            whole = key is not None and key.end() < len(rest)
            if whole or (rest and key is None) or len(rest) > MAX_HEADER // 2 or lx.at_end():
                return key is not None and key.group() in (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS, *AROUND_KEYS)
            yield

    def _after_name(self, lx: Lexer, word: str | None) -> Read[None]:
        if word is None:
            if lx.cut:
                raise NoCall
            return
        if word in self.id_marks:
            lx.pos += len(word)
            word = yield from until(lx, self._after_id, ignore, limit=MAX_HEADER)
        if word in self.name_ends:
            lx.pos += len(word or "")
            yield from self._skip_again(lx)

    def _skip_again(self, lx: Lexer) -> Read[str]:
        """Consumes what ends a name and stands there once more, with white space; returns what comes then."""
        char = yield from skip_space(lx)
        while char and (yield from at_marker(lx, self._name_ends)) is not None:
            char = yield from skip_space(lx)
        return char

    def _read_arguments(self, lx: Lexer, call: CallWriter) -> Read[None]:
        char = yield from skip_space(lx)
        while self.leads and (yield from at_marker(lx, self._leads)) is not None:
            char = yield from skip_space(lx)
        if char == "(" and self.python:
            lx.pos += 1
            if (yield from skip_space(lx)) != "{":
                yield from read_keywords(lx, call)
                return
            yield from read_arguments(lx, call)
            if (yield from skip_space(lx)) == ")":
                lx.pos += 1
        elif char in ("{", '"', "'", "n", "["):
            yield from read_arguments(lx, call)
        elif char:
            yield from self._no_arguments(lx)
        elif lx.cut or (not self.closes and (call.tool is None or call.tool.keys)):
            raise NoCall

    def _no_arguments(self, lx: Lexer) -> Read[None]:
        """A call without arguments: its end follows at once."""
        if (yield from at_marker(lx, self._trails)) is None:
            raise NoCall

    def _close(self, lx: Lexer) -> Read[None]:
        if not self.trails and not self.closes:
            return
        trails = self._trails
        while char := (yield from skip_space(lx)):
            if char in "}])" and lx.ends is not None:
                lx.pos += 1  # one too many
                continue
            word = yield from at_marker(lx, trails)
            if word is None or word in self.closes:
                return
            trails = self._trails if self.closes else self._closing
