"""Kimi K2's calls: an id that holds the name, then the arguments: ``functions.NAME:IDX<...>{...}``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcall.json_stream import read_object
from toolcall.lexer import Lexer, Markers, NoCall, Read, at_marker, peek, skip_space, until
from toolcall.output import CallWriter, Output
from toolcall.schema import Tool, ToolSet
from toolcall.syntax.block import Options
from toolcall.syntax.json_calls import ARGUMENT_KEYS, NAME_KEYS, read_arguments

MAX_HEADER = 512
_COUNT = re.compile(r":[0-9]+$")


@dataclass(frozen=True)
class KimiCalls:
    """call_open ID arguments_open ARGUMENTS close. call_open: "" for calls that have lost it.

    Where the id holds no declared name (an id of another provider, a bare number) the arguments are read first:
    they may be a whole call object, or fit exactly one tool. An id that names another tool is never made to fit.
    """

    call_open: str
    arguments_open: str
    close: str
    foreign: bool = False

    @cached_property
    def _opening(self) -> Markers:
        return Markers((self.call_open,))

    @cached_property
    def _header(self) -> Markers:
        return Markers((self.arguments_open, self.call_open, self.close))

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
        return char.isalpha() or char == "_"

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        call = out.open_call(hold=options.hold, rescued=options.rescued)
        parts: list[str] = []
        if (yield from until(lx, self._header, parts.append, limit=MAX_HEADER)) != self.arguments_open:
            raise NoCall
        lx.pos += len(self.arguments_open)
        name = name_in_id("".join(parts), out.tools)
        yield from skip_space(lx)
        if name is None and not options.rescue:
            raise NoCall
        if name is None:
            yield from self._read_unnamed(lx, out, call, not names_a_tool("".join(parts)))
        else:
            call.named(name)
            if (yield from skip_space(lx)) == "" and lx.cut:
                raise NoCall
            if not lx.buf.startswith("<", lx.pos):
                yield from read_arguments(lx, call)
        call.end()
        yield from skip_space(lx)
        yield from at_marker(lx, self._closing)

    def _read_unnamed(self, lx: Lexer, out: Output, call: CallWriter, fits: bool) -> Read[None]:
        """fits: the tool may be the one that the arguments fit."""
        if not lx.buf.startswith("{", lx.pos):
            raise NoCall
        parts: list[str] = []
        yield from read_object(lx, parts.append)
        found = json.loads("".join(parts))
        name = next((found[k] for k in NAME_KEYS if isinstance(found.get(k), str)), None)
        inner = next((found[k] for k in ARGUMENT_KEYS if isinstance(found.get(k), dict)), None)
        if name is not None and inner is not None and out.tools.get(name):
            call.named(name)
            call.put(json.dumps(inner, ensure_ascii=False))
        else:
            tool = fitting_tool(found, out.tools) if fits else None
            if tool is None:
                raise NoCall
            call.named(tool.name)
            call.put("".join(parts))
        call.rescued = True
        call.commit()


def name_in_id(text: str, tools: ToolSet) -> str | None:
    """The declared name in ``functions.NAME:IDX``; dots, colons and hyphens in names are kept."""
    plain = text.strip()
    for spelling in (_COUNT.sub("", plain), plain):
        if tools.get(spelling):
            return spelling
    return None


def names_a_tool(text: str) -> bool:
    """Whether the id has a name in it, ``functions.NAME`` or ``NAME:IDX``."""
    plain = text.strip()
    name = _COUNT.sub("", plain)
    stem = name.removeprefix("functions.")
    return bool(stem) and not stem.isdigit() and (name != plain or stem != name)


def fitting_tool(arguments: Mapping[str, Any], tools: ToolSet) -> Tool | None:
    """The only tool that has all the keys of the arguments."""
    fitting = [t for t in tools if arguments and arguments.keys() <= t.keys]
    return fitting[0] if len(fitting) == 1 else None
