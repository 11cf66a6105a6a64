"""Kimi K2's calls: an id that holds the name, then the arguments: ``functions.NAME:IDX<...>{...}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcall.json_stream import read_object
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
    peek,
    skip_space,
    until,
)
from toolcall.output import CallWriter, Output
from toolcall.schema import Tool, ToolSet
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import ARGUMENT_KEYS, NAME_KEYS, JsonCalls, read_arguments

_COUNT = re.compile(r"[:#]\s*[0-9]+$")
_LOW_COUNT = re.compile(r"[_.][0-9]+$")
_FENCES = Markers(("```json", "```"))
_STEM = re.compile(r"^(?:functions|tools)[.:/_]")


@dataclass(frozen=True)
class KimiCalls:
    """call_open ID arguments_open ARGUMENTS close. call_open: "" for calls that have lost it. bare: nor does anything
    else say that it is a call: a name alone counts only in front of arguments that it has.

    arguments_open may be missing in front of an object. Where the id holds no declared name (an id of another provider,
    a bare number, nothing) the arguments are read first: they may be a whole call object, or fit exactly one tool. An
    id that names another tool is never made to fit.
    """

    call_open: str
    arguments_open: str
    close: str
    bare: bool = False
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open,))

    @cached_property
    def _header(self) -> Markers:
        return Markers((self.arguments_open, self.call_open, self.close, "{"))

    @cached_property
    def _leads(self) -> Markers:
        """What may stand in front of the arguments: their mark once more, a fence."""
        return Markers((self.arguments_open, *_FENCES.words))

    @cached_property
    def _closing(self) -> Markers:
        return Markers((self.close,))

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.call_open, self.close)

    @property
    def first(self) -> str:
        return re.escape(self.call_open[:2]) or r"\w"

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        if self.call_open:
            return (yield from at_marker(lx, self._opening)) is not None
        char = yield from peek(lx)
        return begins_name(char)

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=options.undeclared)
        parts: list[str] = []
        put = parts.append if self.call_open else checked(lx, parts, lambda text: may_be_id(text, out.tools))
        word = yield from until(lx, self._header, put, limit=MAX_HEADER)
        while word == self.call_open != "":  # the header has begun anew
            lx.pos += len(word)
            parts.clear()
            word = yield from until(lx, self._header, put, limit=MAX_HEADER)
        if word not in (self.arguments_open, "{") or (word == "{" and not options.rescue):
            raise NoCall
        lx.pos += len(word) if word == self.arguments_open else 0
        header = "".join(parts)
        name = name_in_id(header, out.tools)
        char = yield from skip_space(lx)
        while word == self.arguments_open and (yield from at_marker(lx, self._leads)) is not None:
            char = yield from skip_space(lx)
        if name is None and not options.rescue:
            raise NoCall
        if name is None:
            yield from self._read_unnamed(lx, out, call, header)
        else:
            call.named(name)
            if char == "" and lx.cut:
                raise NoCall
            if char != "<":
                yield from read_arguments(lx, call)
            if self.bare and word == "{" and not named_tool(header) and not _has(call):
                raise NoCall
            call.end()
        while (yield from skip_space(lx)) == "`" and (yield from at_marker(lx, _FENCES)) is not None:
            pass
        yield from at_marker(lx, self._closing)

    def _read_unnamed(self, lx: Lexer, out: Output, call: CallWriter, header: str) -> Read[None]:
        """A call whose id holds no declared name."""
        if not lx.buf.startswith("{", lx.pos):
            raise NoCall
        parts: list[str] = []
        yield from read_object(lx, parts.append)
        found = json.loads("".join(parts))
        name = next((found[k] for k in NAME_KEYS if isinstance(found.get(k), str)), None)
        if name is not None and out.tools.get(name) and any(k in found for k in ARGUMENT_KEYS):
            out.drop_call()
            whole = Lexer()
            whole.append("".join(parts))
            whole.eof = True
            yield from JsonCalls().read(whole, out, Options(hold=True, rescued=True))
            return
        named = named_tool(header)
        tool = fitting_tool(found, out.tools) if header.strip() and not named else None
        if tool is None and not named:
            raise NoCall
        call.named(tool.name if tool is not None else named)
        call.put("".join(parts))
        call.rescued = tool is not None
        call.commit()
        call.end()


def _has(call: CallWriter) -> bool:
    """Whether the tool has the arguments, and there are some."""
    found = json.loads("".join(call.parts))
    return call.tool is not None and bool(found) and found.keys() <= call.tool.keys


def name_in_id(text: str, tools: ToolSet) -> str | None:
    """The declared name in ``functions.NAME:IDX``; dots, colons and hyphens in names are kept."""
    plain = text.strip()
    for stem in (plain, _STEM.sub("", plain), plain.rpartition(".")[2]):
        once = _COUNT.sub("", stem)
        for spelling in (once, stem, _COUNT.sub("", once), _LOW_COUNT.sub("", stem)):
            if tools.get(spelling):
                return spelling
    return None


def may_be_id(text: str, tools: ToolSet) -> bool:
    """Whether more text can make this the id of a call of a declared tool."""
    return tools.may_begin(_COUNT.sub("", text.rstrip(SPACE)).rstrip(":"))


def named_tool(text: str) -> str:
    """The name in an id, ``functions.NAME`` or ``NAME:IDX``, "" where there is none."""
    plain = text.strip()
    name = _COUNT.sub("", plain)
    stem = _STEM.sub("", name)
    return stem if not stem.isdigit() and (name != plain or stem != name) else ""


def fitting_tool(arguments: Mapping[str, Any], tools: ToolSet) -> Tool | None:
    """The only tool that has all the keys of the arguments."""
    fitting = [t for t in tools if arguments and arguments.keys() <= t.keys]
    return fitting[0] if len(fitting) == 1 else None
