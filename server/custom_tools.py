"""Custom tools: the model writes free text where a function takes JSON.

To the model such a tool is a function with one argument, ``input``; what it writes there is what the client gets, on
chat and on Responses alike. A grammar for the text is shown to the model and, as a pattern of that argument, enforced;
one that no pattern says is only shown, which the answer tells.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from engine.grammar.interface import GrammarError
from engine.grammar.source import check_regex
from server import limits
from server.errors import BadRequest, invalid
from server.lark_pattern import NoPattern, lark_pattern
from toolcall.events import Event, ToolCallArguments, ToolCallEnd, ToolCallStart

_INPUT = "input"
_HEAD = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_WORDS = re.compile(r'(?:[^"\\]|\\(?:[^u]|u[0-9a-fA-F]{4}))*')
_ENDS = re.compile(r"(?<!\\)(?:\\\\)*\$\Z")
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
"""The first half of a surrogate pair."""


@dataclass(frozen=True, slots=True)
class TextGrammar:
    """What a custom tool's text must be. syntax: ``lark`` or ``regex``."""

    syntax: str
    definition: str

    def pattern(self) -> str:
        """A regex of the whole text. Raises NoPattern."""
        if self.syntax == "regex":
            # both anchors say what holds anyway
            inner = self.definition.removeprefix("^")
            return f"^(?:{inner[:-1] if _ENDS.search(inner) else inner})$"
        pattern = f"^(?:{lark_pattern(self.definition)})$"
        try:
            check_regex(pattern)
        except GrammarError as error:
            raise NoPattern(str(error)) from None
        return pattern


def as_function(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The function that stands for a custom tool. Raises BadRequest for a format that is none."""
    description, grammar = tool.get("description"), text_grammar(tool.get("format"), f"{where}.format")
    if grammar and isinstance(description, (str, type(None))):
        told = f"The input must match this grammar:\n{grammar.definition}"
        description = "\n\n".join(filter(None, (description, told)))
    return {"name": tool.get("name"), "description": description, "parameters": parameters()}


def parameters(pattern: str = "") -> dict[str, Any]:
    """The schema of such a function's arguments."""
    text = {"type": "string", "pattern": pattern} if pattern else {"type": "string"}
    return {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT], "additionalProperties": False}


def text_grammar(given: Any, where: str) -> TextGrammar | None:
    """The grammar that a format names, in chat's form or in that of Responses; None for free text."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind != "grammar":
        raise invalid(where, "an object of type 'text' or 'grammar' is expected")
    inner = given.get("grammar", given)
    definition = inner.get("definition") if isinstance(inner, dict) else None
    if not isinstance(definition, str) or not definition or inner.get("syntax") not in ("lark", "regex"):
        raise invalid(where, "a grammar has a syntax ('lark' or 'regex') and a definition")
    if len(definition.encode()) > limits.MAX_GRAMMAR_BYTES:
        raise BadRequest(f"'{where}' is larger than {limits.MAX_GRAMMAR_BYTES} bytes.", param=where)
    return TextGrammar(inner["syntax"], definition)


def as_arguments(words: str) -> str:
    """The arguments of the function call that stands for a custom one."""
    return orjson.dumps({_INPUT: words}).decode()


class CustomCalls:
    """Events of one choice, in which the arguments of custom tools become the text that stands in them."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._open: dict[int, _Input] = {}

    def apply(self, events: Sequence[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if isinstance(event, ToolCallStart) and event.name in self._names:
                self._open[event.index] = _Input()
            elif isinstance(event, (ToolCallArguments, ToolCallEnd)) and event.index in self._open:
                words = self._open[event.index]
                more = words.feed(event.fragment) if isinstance(event, ToolCallArguments) else words.rest()
                found += [ToolCallArguments(event.index, more)] if more else []
                if isinstance(event, ToolCallArguments):
                    continue
            found.append(event)
        return found


class _Input:
    """``{"input": "…"}`` piece by piece; each piece of the text as soon as it is whole."""

    def __init__(self) -> None:
        self._seen: list[str] = []
        self._rest = ""
        self._begun = self._ended = False

    def feed(self, fragment: str) -> str:
        if self._ended:
            return ""
        self._rest += fragment
        if not self._begun:
            self._seen.append(fragment)
            head = _HEAD.match(self._rest)
            if head is None:
                return ""
            self._begun, self._rest = True, self._rest[head.end() :]
        found = _WORDS.match(self._rest)
        assert found is not None
        words, self._rest = found[0], self._rest[found.end() :]
        self._ended = self._rest.startswith('"')
        half = None if self._ended else _HALF.search(words)
        if half is not None:
            words, self._rest = words[: half.start()], half[0] + self._rest
        return str(json.loads(f'"{words}"', strict=False)).encode("utf-8", "replace").decode()

    def rest(self) -> str:
        """Of a call that is whole: what did not come in that form."""
        if self._begun:
            return ""
        written = "".join(self._seen)
        try:
            value = json.loads(written, strict=False)
        except (ValueError, RecursionError):
            return written
        words = [item for item in value.values() if isinstance(item, str)] if isinstance(value, dict) else []
        if isinstance(value, dict) and isinstance(value.get(_INPUT), str):
            return str(value[_INPUT])
        return words[0] if len(words) == 1 else written
