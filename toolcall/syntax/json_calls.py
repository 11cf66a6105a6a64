"""Calls written as JSON objects: ``{"name": ..., "arguments": {...}}``, alone, one after another, or in a list."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from toolcall.json_stream import (
    COLONS,
    read_atom,
    read_bare_key,
    read_colon,
    read_object,
    read_value,
    skip_noise,
)
from toolcall.json_strings import opens_string, read_text
from toolcall.json_text import encodable, is_object
from toolcall.json_whole import decode_all
from toolcall.lexer import MAX_HEADER, Lexer, NoCall, Read, ignore, peek, skip_space
from toolcall.output import CallWriter, Output
from toolcall.schema import Tool
from toolcall.syntax.block import Options

NAME_KEYS = ("name", "tool_name", "function_name", "function", "tool")
ARGUMENT_KEYS = ("arguments", "parameters", "args", "params", "input")
OTHER_KEYS = ("type", "id", "index", "tool_call_id", "description")
AROUND_KEYS = ("function", "tool_call", "function_call", "tool_calls", "function_calls")
"""Their value is a call, or a list of calls."""
_WRAPPING_KEYS = (*NAME_KEYS, *ARGUMENT_KEYS, *OTHER_KEYS)
_FIRST_KEY = re.compile(r"\{\s*+[\"']?(\w++)[\"':\s]")
_PART_OF_KEY = re.compile(r"\{\s*+[\"']?\w*+")
_MEMBER = re.compile(r"\s*+[{,]\s*+(?=\")")
_COLON = re.compile(r"\s*+:\s*+")
_DECODER = json.JSONDecoder()
_MAX_ENCODED = 3
_MAX_AROUND = 6
"""Members of a call object."""
_BRACKETS = re.compile(r"\[\s*+(?:\[\s*+)?+")


@dataclass(frozen=True)
class JsonCalls:
    """names, arguments: the keys, the family's own first. by_name: a call is an object of one member, whose key is the
    tool's name; elsewhere that is read where no other key fits. fallback: the name of a call that has none."""

    names: tuple[str, ...] = NAME_KEYS
    arguments: tuple[str, ...] = ARGUMENT_KEYS
    by_name: bool = False
    fallback: str = ""
    foreign: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        return ()

    @property
    def first(self) -> str:
        return r"[\{\[]"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if (yield from peek(lx)) == "[":
            size = yield from _brackets(lx)
            lx.pos += size
        return lx.buf[lx.pos : lx.pos + 1] == "{"

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=options.undeclared)
        depth = 1
        strange: list[str] = []
        lx.pos += 1
        if (yield from skip_space(lx)) == "{":
            lx.pos += 1
        while depth:
            char = yield from skip_noise(lx)
            if char == "}":
                lx.pos += 1
                depth -= 1
            elif char == ",":
                lx.pos += 1
            elif opens_string(lx, char) or (char and _begins_key(char) and not options.strict):
                depth += yield from self._member(lx, call, options, strange)
            elif call.tool is not None and call.written and _may_end(lx, char, options):
                break
            else:
                raise NoCall
        if call.tool is None and self.fallback:
            call.named(self.fallback)
        if not call.written and (options.strict or strange):
            raise NoCall
        call.end()

    def skip(self, lx: Lexer, out: Output) -> Read[None]:
        yield from read_value(lx, ignore)

    def _member(self, lx: Lexer, call: CallWriter, options: Options, strange: list[str]) -> Read[int]:
        """Reads one key and its value. Returns 1 if the call goes on in an inner object. strange: takes the keys
        that say nothing about a call; without arguments they may be the arguments themselves."""
        quoted = opens_string(lx, lx.buf[lx.pos])
        key = (yield from read_text(lx)) if quoted else (yield from read_bare_key(lx))
        if options.strict and key not in (*self.names, *self.arguments, *OTHER_KEYS, *AROUND_KEYS):
            raise NoCall
        char = yield from _skip_colon(lx)
        member = call.declares(key) and bool(char) and char in "{n" and not options.strict
        strange_key = key not in (*self.names, *self.arguments, *OTHER_KEYS, *AROUND_KEYS)
        if self.by_name and call.tool is None and (call.declares(key) or (strange_key and call.takes(key))):
            yield from self._named(lx, call, key)
        elif call.tool is None and key in AROUND_KEYS and char and char in "{[":
            lx.pos += 1
            if char == "{":
                return 1
            if (yield from skip_space(lx)) != "{":
                raise NoCall
            lx.pos += 1
        elif key in self.names and call.tool is None:
            if opens_string(lx, char):
                call.named((yield from read_text(lx, call.may_be_named)))
            elif lx.ends is not None and call.declares(name := (yield from read_bare_key(lx))):
                call.named(name)
            else:
                raise NoCall
        elif key in self.arguments and not call.parts and not call.written:
            yield from read_arguments(lx, call)
        elif member:
            yield from self._named(lx, call, key)
        else:
            if key not in (*self.names, *self.arguments, *OTHER_KEYS):
                strange.append(key)
            yield from read_value(lx, ignore)
        return 0

    def _named(self, lx: Lexer, call: CallWriter, key: str) -> Read[None]:
        if call.tool is not None:
            raise NoCall  # a second call in one object
        call.named(key)
        yield from read_arguments(lx, call)


def _skip_colon(lx: Lexer) -> Read[str]:
    """Consumes the colon behind a key, however often it stands there, and white space; returns what comes then."""
    read_colon(lx, (yield from skip_space(lx)), ignore)
    while (char := (yield from skip_space(lx))) and lx.ends is not None and char in COLONS:
        lx.pos += 1
    return char


def _brackets(lx: Lexer) -> Read[int]:
    """How long the brackets of a list are in front of the first call; 0 where none stands in it."""
    while True:
        rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
        found = _BRACKETS.match(rest)
        assert found is not None
        if found.end() < len(rest):
            return found.end() if rest[found.end()] == "{" else 0
        if len(rest) == MAX_HEADER or lx.at_end():
            return 0
        yield


def _may_end(lx: Lexer, char: str, options: Options) -> bool:
    """Whether a call whose brace is missing ends here. Where nothing but braces says that it is one, the text must."""
    if not char:
        return not lx.cut and not (options.strict and options.rescued)
    return not options.strict


def _decoded(text: str) -> str:
    """What stands in a JSON string in the text: models encode arguments more than once."""
    for _ in range(_MAX_ENCODED):
        if not text.lstrip().startswith('"'):
            break
        try:
            text = str(json.loads(text))
        except ValueError:
            break
    return text


def _begins_key(char: str) -> bool:
    return char.isalpha() or char in "_$"


def _read_object(lx: Lexer, call: CallWriter) -> Read[None]:
    if call.tool is None or not call.tool.keys or not (yield from _is_wrapped(lx, call.tool)):
        yield from read_object(lx, call.put, call.commit)
        return
    parts: list[str] = []
    yield from read_object(lx, parts.append)
    text = "".join(parts)
    call.put(_inner_arguments(text, call.tool) or text)


def _is_wrapped(lx: Lexer, tool: Tool) -> Read[bool]:
    """Whether the first key of the object that begins here says that the arguments stand inside of it."""
    while True:
        rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
        found = _FIRST_KEY.match(rest)
        if found is not None:
            return found.group(1) in _WRAPPING_KEYS and not tool.has(found.group(1))
        if len(rest) == MAX_HEADER or _PART_OF_KEY.fullmatch(rest) is None or lx.at_end():
            return False
        yield


def _inner_arguments(text: str, tool: Tool) -> str | None:
    """``{"name": "f", "arguments": {...}}``, or without the name, as the arguments of f: those inside, as written."""
    inner: list[tuple[Any, str]] = []
    end = 0
    for _ in range(_MAX_AROUND):
        at = _MEMBER.match(text, end)
        if at is None:
            break
        key, end = _DECODER.raw_decode(text, at.end())
        colon = _COLON.match(text, end)
        assert colon is not None
        value, end = _DECODER.raw_decode(text, colon.end())
        if tool.has(key) or (key in NAME_KEYS and value != tool.name):
            return None
        if key in ARGUMENT_KEYS:
            inner.append((value, text[colon.end() : end]))
        elif key not in (*NAME_KEYS, *OTHER_KEYS):
            return None
    if len(inner) != 1 or _MEMBER.match(text, end) is not None:
        return None
    value, written = inner[0]
    if isinstance(value, str):
        return encodable(value) if is_object(value) else None
    return written if isinstance(value, dict) else None


def read_arguments(lx: Lexer, call: CallWriter) -> Read[None]:
    """The arguments: an object, an object in a string, or null. Anything else is no call."""
    char = yield from peek(lx)
    if char == "{":
        yield from _read_object(lx, call)
        call.commit()
        return
    if opens_string(lx, char):
        text = _decoded((yield from read_text(lx)))
        if text.strip() in ("", "null"):
            text = "{}"
        elif not is_object(text):
            text = decode_all(read_object, text, ends=lx.ends is not None) or ""
        if not is_object(text):
            raise NoCall
        call.put(encodable(text))
    elif char == "[":
        lx.pos += 1
        char = yield from skip_space(lx)
        if char == "{" and lx.ends is not None:
            yield from read_object(lx, call.put, call.commit)
            char = yield from skip_space(lx)
        elif char == "]":
            call.put("{}")
        if char != "]":
            raise NoCall
        lx.pos += 1
    else:
        word: list[str] = []
        yield from read_atom(lx, word.append)
        if word != ["null"]:
            raise NoCall
        call.put("{}")
    call.commit()
