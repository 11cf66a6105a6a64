"""Calls written as Python: ``[get_weather(city="Oslo", days=2), now()]``. Keyword arguments only, literals only."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass

from toolcall.json_stream import read_value, skip_noise
from toolcall.json_strings import checked
from toolcall.json_text import is_object, quote
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
    ends_here,
    peek,
    second,
    skip_space,
    until,
)
from toolcall.output import CallWriter, Output
from toolcall.syntax.block import Options

_KEY = re.compile(r"\w+")
_NAME = re.compile(r"[\w.-]*")
_BEHIND = ("", ",", ";", "]", "`", *string.ascii_letters, "_")
"""What may stand behind a call that nothing marks as one: what goes on with the list, or ends it."""
_BEHIND_LIST = re.compile(r"\][ \t]*+[^ \t](?s:.)")
_GOES_ON = re.compile(r"\](?:[(:=]|\.\w|\[(?:[0-9]|[^\w\[{\s])|[ \t]*+[+*/%&|^=])")
"""A list that is a link, is looked into, called or reckoned with."""
_CALL = re.compile(r"(?:(?:;|,[ \t]*+\r?\n)\s*+)?+[\w.-]*+\(|<\|")
_PART_OF_CALL = re.compile(r",[ \t]*+\r?|(?:(?:;|,[ \t]*+\r?\n)\s*+)?+[\w.-]*+|<")
"""What may stand behind a call that stands alone: another, or the end of the turn. A comma and a blank are prose."""
_STARS = Markers(("**",))
_PAREN = Markers(("(",))
_EQUALS, _COLONS = Markers(("=",)), Markers(("=", ":"))


@dataclass(frozen=True)
class PythonCalls:
    """in_list: the opening bracket is the block's opener; otherwise a list may begin here. code: what stands there may
    be a program, whose functions are no tools. alone: calls count only where nothing but calls follows."""

    in_list: bool = False
    code: bool = False
    alone: bool = False
    foreign: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return ()

    @property
    def first(self) -> str:
        return r"\w" if self.in_list else r"[\w\[]"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        char = yield from peek(lx)
        if char == "[" and not self.in_list and begins_name((yield from second(lx))):
            lx.pos += 1
            char = yield from skip_space(lx)
        return begins_name(char)

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(
            hold=options.hold, rescued=options.rescued, undeclared=options.undeclared and not self.code
        )
        parts: list[str] = []
        accept = checked(lx, parts, lambda t: call.may_be_named(t) or call.may_be_named(_without_method(t)))
        if (yield from until(lx, _PAREN, accept, limit=MAX_HEADER)) is None:
            raise NoCall
        name = "".join(parts)
        call.named(name if call.declares(name) else _without_method(name))
        lx.pos += 1
        yield from read_keywords(lx, call)
        if options.rescued and not (yield from _stands_alone(lx) if self.alone else _is_all(lx)):
            raise NoCall
        if self.in_list and (yield from skip_space(lx)) == "]" and (yield from at_words(lx, ("](",))):
            raise NoCall  # the text of a link
        call.end()

    def skip(self, lx: Lexer, out: Output) -> Read[None]:
        if (yield from until(lx, _PAREN, _in_name(lx), limit=MAX_HEADER)) is None:
            raise NoCall
        lx.pos += 1
        yield from read_keywords(lx, CallWriter(out, hold=True, rescued=False))


def _is_all(lx: Lexer) -> Read[bool]:
    """Whether a call that nothing marks as one is all that is written here."""
    char = yield from skip_space(lx)
    while char == "]":
        rest = lx.buf[lx.pos : lx.pos + 64]
        if _BEHIND_LIST.match(rest) is not None or len(rest) == 64 or lx.at_end():
            return _GOES_ON.match(rest) is None
        yield
    return char in _BEHIND


def _stands_alone(lx: Lexer) -> Read[bool]:
    """Whether nothing follows but other calls and the end of the turn."""
    char = yield from skip_space(lx)
    while char:
        rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
        if _CALL.match(rest) is not None:
            return True
        if not _PART_OF_CALL.fullmatch(rest) or len(rest) == MAX_HEADER or lx.at_end():
            return False
        yield
    return True


def _in_name(lx: Lexer) -> Put:
    return checked(lx, [], lambda text: _NAME.fullmatch(text) is not None)


def _without_method(name: str) -> str:
    """Llama's built-in tools are called as methods: ``brave_search.call(query="x")``."""
    head, dot, method = name.rpartition(".")
    return head if dot and ".call".startswith("." + method.strip()) else name


def read_keywords(lx: Lexer, call: CallWriter) -> Read[None]:
    """Keyword arguments up to the closing parenthesis, behind the opening one."""
    seen = 0
    empty = closed = True
    while True:
        char = yield from skip_noise(lx, python=True)
        if char == ")":
            break
        if seen and char == ",":
            lx.pos += 1
            while (char := (yield from skip_noise(lx, python=True))) == "," and lx.ends is not None:
                lx.pos += 1
            if char == ")":
                break
        elif seen and char and lx.ends is not None and (char == "]" or (yield from ends_here(lx))):
            closed = False
            break
        elif seen and (lx.ends is None or not begins_name(char)):
            raise NoCall
        if char == "*" or (char == "{" and not seen):
            empty = (yield from _read_unpacked(lx, call, empty)) and empty
        else:
            yield from _read_argument(lx, call, empty)
            empty = False
        seen += 1
    lx.pos += closed
    call.put("{}" if empty else "}")
    call.written = True


def _read_unpacked(lx: Lexer, call: CallWriter, empty: bool) -> Read[bool]:
    """``**{'query': 'cats'}``, or the dict without its stars. Returns whether there is nothing in it."""
    parts: list[str] = []
    if lx.buf[lx.pos] == "*" and (yield from at_marker(lx, _STARS)) is None:
        raise NoCall
    yield from skip_space(lx)
    yield from read_value(lx, parts.append, python=True)
    text = "".join(parts)
    if not is_object(text):
        raise NoCall
    inner = text.strip()[1:-1].strip()
    if inner:
        call.put(("{" if empty else ", ") + inner)
        call.commit()
    return not inner


def _read_argument(lx: Lexer, call: CallWriter, first: bool) -> Read[None]:
    parts: list[str] = []
    marked = lx.ends is not None
    word = yield from until(lx, _COLONS if marked else _EQUALS, parts.append, limit=MAX_HEADER)
    if word is None:
        raise NoCall
    key = "".join(parts).strip().strip("\"'" if marked else "")
    if not _KEY.fullmatch(key):
        raise NoCall
    lx.pos += 1
    char = yield from skip_space(lx)
    if char == "=" and marked:
        lx.pos += 1
        char = yield from skip_space(lx)
    if not char or char in ",)]}=":
        raise NoCall
    call.put(("{" if first else ", ") + quote(key) + ": ")
    if char in "\"'{[(":
        call.commit()
    yield from read_value(lx, call.put, python=True)
    call.commit()
