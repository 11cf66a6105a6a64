"""Lark rules for JSON values and literal text, and the grammar that they make up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

_FIXED = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_FLEXIBLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}
_JSON_MARKS = re.compile(r"(\s+|[{}:,])")
_LINE_BREAKS = re.compile(r"((?<![^\S\n])[^\S\n]*+\n\s*+)")
_WRITTEN = re.compile(r"\\?\n|\\.|/")
_ESCAPED = {"/": "\\/", "\n": "\\n", "\\\n": "\\n"}
"""What stands otherwise in a Lark regex literal."""
TERMINALS = "WS: /[ \\t\\r\\n]{1,64}/\nLAYOUT: /[ \\n]{1,4}/\nINDEX: /[0-9]{1,3}/\n"


class Rules:
    """Collects named rules; the same body is written once."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._terminals: dict[str, str] = {}
        self._defined: dict[str, str] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    def add(self, kind: str, body: str) -> str:
        """Name of a rule with this body. ``kind`` is the stem of its name, with options in brackets."""
        stem, _, options = kind.partition("[")
        key = (options, body)
        if key not in self._names:
            self._names[key] = f"{stem}_{len(self._names)}"
        return self._names[key]

    def terminal(self, name: str, body: str) -> None:
        self._terminals[name] = body

    def number(self, *key: object) -> int:
        """A number for this key, the same each time."""
        return self._numbers.setdefault(key, len(self._numbers))

    def numbered(self, stem: str, body: str) -> str:
        """The name of a terminal with this body."""
        name = f"{stem}_{self.number(stem, body)}"
        self.terminal(name, body)
        return name

    def define(self, name: str, body: str) -> None:
        """A rule of this name, ``name::_`` for one with a parameter."""
        self._defined[name] = body

    def defined(self, name: str) -> bool:
        return name in self._defined

    def joined(self, *parts: str) -> str:
        """A terminal that is these, one after another."""
        return self.numbered("JOINED", " ".join(parts))

    def text(self, start: str) -> str:
        """The whole grammar."""
        lines = [f"start: {start}"]
        for (options, body), name in self._names.items():
            lines.append(f"{name}{'[' + options if options else ''}: {body}")
        lines += [f"{name}: {body}" for name, body in (*self._defined.items(), *self._terminals.items())]
        return "\n".join(lines) + "\n" + TERMINALS


def lark_text(text: str, *, flexible: bool, is_json: bool = False) -> str:
    """Lark for literal text. Where flexible, line breaks in it are optional white space; where it is JSON too,
    white space is allowed around every mark."""
    if not text:
        return ""
    if not flexible:
        return lark_literal(text)
    parts: list[str] = []
    for piece in (_JSON_MARKS if is_json else _LINE_BREAKS).split(text):
        if not piece:
            continue
        if not piece.strip():
            parts.append("WS?")
        elif is_json and piece in "{}:,":
            parts += ["WS?", lark_literal(piece), "WS?"]
        else:
            parts.append(lark_literal(piece))
    return " ".join(part for at, part in enumerate(parts) if part != "WS?" or at == 0 or parts[at - 1] != "WS?")


def lark_json(text: str) -> str:
    """Lark for literal JSON, mark by mark: the lexer takes the longest lexeme, so one for several marks would leave
    no way to another object that begins alike."""
    return " ".join(lark_literal(piece) for piece in re.split(r"([{}]|: |, )", text) if piece)


def lark_literal(text: str) -> str:
    """A Lark string literal that matches ``text``."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def lark_regex(pattern: str) -> str:
    """A Lark regex literal: slashes and line ends escaped, nothing else touched."""
    return "/" + _WRITTEN.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern) + "/"


def sequence(rules: Rules, elements: Sequence[str], required: Sequence[bool], between: str) -> str:
    """Elements in order, optional ones left out freely, ``between`` only between two that are there; "" for none."""
    if not between:
        return " ".join(element if must else f"{element}?" for element, must in zip(elements, required, strict=True))
    rest = first = ""
    for element, must in reversed(list(zip(elements, required, strict=True))):
        follow = f"{element} {rest}".strip()
        first = rules.add("first", follow if must else f"{follow} | {first}" if first else f"({follow})?")
        joined = f"{between} {follow}"
        rest = rules.add("rest", joined if must else f"{joined} | {rest}" if rest else f"({joined})?")
    return first


def compiled_json(rules: Rules, schema: Schema, *, flexible: bool, lenient: bool = False) -> str:
    """A rule for a JSON value of this schema, as the compiler reads it, without a client's own x-guidance."""
    options: dict[str, Any] = dict(_FLEXIBLE if flexible else _FIXED)
    if lenient:
        options["lenient"] = True
    body = {key: value for key, value in schema.items() if key != "x-guidance"}
    return rules.add("json", "%json " + json.dumps({"x-guidance": options, **body}, ensure_ascii=False))
