"""Lark rules for string values that stand without quotes between a format's marks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolcall.constraint_formats import RAW_FORMATS
from toolcall.constraint_styles import TaggedArguments
from toolcall.lark import Rules, Schema, lark_literal, lark_regex
from toolcall.regex_dialect import written
from toolcall.schema_values import literals

_ANY = "(?s:.*)"
_MAX_LISTED = 100
"""More strings than these are one terminal: as alternatives of a rule each is an item of the parser's."""


def raw_value(rules: Rules, schema: Schema, style: TaggedArguments, tail: str) -> str:
    """A raw string value with the text that ends it, which the value itself cannot hold; "" where there is none."""
    closing = lark_literal(style.quote + tail)
    patterns = _patterns(schema)
    if listed := literals(schema):
        options = " | ".join(map(lark_literal, writable(style, listed)))
        if not options or (not patterns and len(listed) <= _MAX_LISTED):
            return f"({options}) {closing}" if options else ""
        allowed = " & ".join([f"({options})", *map(lark_regex, patterns)])
        return rules.add(f"raw[suffix={closing}]", rules.numbered("LISTED", allowed))
    again = rf"|{re.escape(style.again[0])}\s*{re.escape(style.again[1])}" if style.again is not None else ""
    forbidden = "|".join(map(re.escape, style.forbidden)) + again
    marks = f"~{lark_regex(f'{_ANY}({forbidden}){_ANY}')}"
    if patterns:
        ends = _least([*style.forbidden, *(style.again or ())[:1]])
        marks = lark_regex(without_marks(ends)) if _alike(ends) else marks
    allowed = " & ".join(map(lark_regex, patterns or (_ANY,)))
    name = rules.numbered("RAW", f"{allowed} & {marks}")
    return rules.add(f"raw[suffix={closing}]", name)


def writable(style: TaggedArguments, listed: Sequence[Any]) -> list[str]:
    """The strings among them that hold no mark."""
    return [item for item in listed if isinstance(item, str) and not any(mark in item for mark in style.forbidden)]


def _least(marks: Sequence[str]) -> list[str]:
    """The marks that hold no other."""
    return [mark for mark in dict.fromkeys(marks) if not any(other in mark for other in marks if other != mark)]


def _alike(marks: Sequence[str]) -> bool:
    """Whether the marks that are no single characters begin with one character, so that texts without them can be said
    in a regex; one long mark alone is no trouble to the compiler."""
    longer = [mark for mark in marks if len(mark) > 1]
    one_kind = len({mark[0] for mark in longer}) <= 1
    return one_kind and (len(longer) != 1 or len(marks) > 1)


def without_marks(marks: Sequence[str]) -> str:
    """A regex of the texts that hold none of these marks: single characters, and texts that begin with one character;
    of one in which that comes again, only the part before it is looked for.

    It says what ``~/.*(one|other).*/`` says, but where that is joined with a bound on the length the compiler's work
    grows with their product, and soon is too much for one step.
    """
    longer = [mark for mark in marks if len(mark) > 1]
    first = longer[0][0] if longer else ""
    cut = {first + mark[1:].split(first, 1)[0] for mark in longer}
    barred = "".join(written(ord(mark)) for mark in sorted({*marks, *cut}) if len(mark) == 1)
    if not longer or first in cut:
        return f"[^{barred}]*"
    tree: dict[str, Any] = {}
    for mark in sorted(cut, key=len):
        node: dict[str, Any] | None = tree
        for char in mark[1:-1]:
            node = None if node is None else node.setdefault(char, {})
        if node is not None:
            node[mark[-1]] = None
    begun = written(ord(first)) + _begun(tree)
    left = written(ord(first)) + _left(barred + written(ord(first)), tree)
    return f"(?s:(?:[^{barred}{written(ord(first))}]|(?:{begun})*{left})*(?:{begun})*)"


def _begun(node: Mapping[str, Any]) -> str:
    """How a mark may begin here without coming to its end."""
    parts = [written(ord(char)) + _begun(after) for char, after in node.items() if after is not None]
    return f"(?:{'|'.join(parts)})?" if parts else ""


def _left(barred: str, node: Mapping[str, Any]) -> str:
    """How a mark that has begun turns out to be none: with a character that neither goes on nor begins anew."""
    parts = [f"[^{barred}{''.join(written(ord(char)) for char in node)}]"]
    parts += [written(ord(char)) + _left(barred, after) for char, after in node.items() if after is not None]
    return f"(?:{'|'.join(parts)})"


def _patterns(schema: Schema) -> tuple[str, ...]:
    """Regexes that a raw value matches as a whole, all of them; none where any text will do."""
    patterns = []
    pattern = schema.get("pattern")
    if isinstance(pattern, str) and not inner_anchor(pattern):
        patterns.append(_whole(pattern))
    if schema.get("format") in RAW_FORMATS:
        patterns.append(RAW_FORMATS[schema["format"]])
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if high is not None or low:
        patterns.append(f"(?s:.{{{low},{'' if high is None else high}}})")
    return tuple(patterns)


def inner_anchor(pattern: Any) -> bool:
    """Whether an anchor stands elsewhere than at the ends of the pattern or of its alternatives: a raw value's pattern
    is matched as a whole."""
    if not isinstance(pattern, str):
        return False
    return any(re.search(r"[$^]", _syntax(_trimmed(part)[1])) is not None for part in _alternatives(pattern))


def _syntax(pattern: str) -> str:
    """The pattern with an x for every escape and class."""
    return re.sub(r"\\.|\[\^?\]?[^\]]*\]", lambda found: "x" * len(found[0]), pattern, flags=re.DOTALL)


def _alternatives(pattern: str) -> list[str]:
    """What the outermost bars part."""
    found, depth, begun = [], 0, 0
    for at, char in enumerate(_syntax(pattern)):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "|" and depth == 0:
            found.append(pattern[begun:at])
            begun = at + 1
    return [*found, pattern[begun:]]


def _whole(pattern: str) -> str:
    """A regex that may match anywhere as one that matches the whole."""
    return "|".join(f"{head}(?:{body}){tail}" for head, body, tail in map(_trimmed, _alternatives(pattern)))


def _trimmed(pattern: str) -> tuple[str, str, str]:
    """(before, pattern, after) of one alternative, its anchors taken off."""
    ends = _syntax(pattern).endswith("$")
    body = (pattern[:-1] if ends else pattern).removeprefix("^")
    return "" if pattern.startswith("^") else _ANY, body, "" if ends else _ANY
