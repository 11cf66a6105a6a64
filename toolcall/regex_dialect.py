"""Patterns of JSON Schema (ECMA-262's regexes) in the words of the grammar compiler, which reads Rust's.

What the two read differently is spelt out: ``\\d``, ``\\w``, ``\\s``, ``.``, characters in classes that mean something
in Rust only (``[``, ``&&``), ``\\cX``, ``\\0``, pairs of surrogates, braces that repeat nothing. Where dialects
disagree (what is white space?) the translation allows what all of them allow. Look-around, references back and groups'
flags are left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache, lru_cache

Range = tuple[int, int]

_LINE_ENDS: Sequence[Range] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_DIGIT: Sequence[Range] = ((0x30, 0x39),)
_WORD: Sequence[Range] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Sequence[Range] = (
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
    (0x205F, 0x205F), (0x3000, 0x3000),
)  # fmt: skip
_SPACE_TO_SOME: Sequence[Range] = (*_SPACE, (0x1C, 0x1F), (0x85, 0x85), (0xFEFF, 0xFEFF))
_LAST = 0x10FFFF
_CONTROLS = {"t": 0x09, "n": 0x0A, "v": 0x0B, "f": 0x0C, "r": 0x0D}
_ESCAPED_IN_JSON = (0x22, 0x5C)
_REPEAT = re.compile(r"\{[0-9]+(?:,[0-9]*)?\}")
_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|P?<[A-Za-z_$][\w$]*>|[a-zA-Z-]*[:)]))?")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[ux]\{([0-9A-Fa-f]{1,6})\}")
_LOW_SURROGATE = re.compile(r"\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_PROPERTY = re.compile(r"[pP](?:\{[\w=^:.-]{1,64}\}|[A-Z])")
_KEPT = "bBGk123456789"
"""Escapes that are no characters: anchors, and references back, which the compiler refuses by name."""


@lru_cache(maxsize=256)
def translated(pattern: str) -> str:
    """The pattern as Rust reads it. A malformed one comes back in part, for the compiler to refuse."""
    parts: list[str] = []
    at = 0
    dot = "." if re.search(r"\(\?[a-z]*s", pattern) else _class(_LINE_ENDS, negated=True)
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            text, at = _escape(pattern, at + 1)
            parts.append(text)
        elif char == "[":
            text, at = _character_class(pattern, at + 1)
            parts.append(text)
        elif (char == "(" and (found := _GROUP.match(pattern, at)) is not None) or (
            char == "{" and (found := _REPEAT.match(pattern, at)) is not None
        ):
            parts.append(found[0])
            at = found.end()
        else:
            parts.append(dot if char == "." else written(ord(char)) if char in "{}]" else char)
            at += 1
    return "".join(parts)


def _escape(pattern: str, at: int) -> tuple[str, int]:
    """An escape outside a class, behind its backslash."""
    char = pattern[at : at + 1]
    if char and char in _KEPT:
        return f"\\{char}", at + 1
    if char and char in "AZz":
        return "^" if char == "A" else "$", at + 1
    if (found := _PROPERTY.match(pattern, at)) is not None:
        return f"\\{found[0]}", found.end()
    if char in ("s", "S", "d", "D", "w", "W") and char:
        return _shorthand_class(char), at + 1
    code, at = _character(pattern, at)
    return ("\\" if code is None else written(code)), at


@cache
def _shorthand_class(char: str) -> str:
    ranges, negated = _shorthand(char)
    return _class(ranges, negated=negated)


def _shorthand(char: str) -> tuple[Sequence[Range], bool]:
    """(ranges, negated) of one of ``s d w`` and their opposites."""
    ranges = {"s": _SPACE, "S": _SPACE_TO_SOME, "d": _DIGIT, "D": _DIGIT, "w": _WORD, "W": _WORD}[char]
    return ranges, char.isupper()


def _character(pattern: str, at: int) -> tuple[int | None, int]:
    """The code point of an escape, behind its backslash; None at the end of the pattern."""
    if at >= len(pattern):
        return None, at
    char = pattern[at]
    if char in _CONTROLS:
        return _CONTROLS[char], at + 1
    if char == "0":
        return 0, at + 1
    if char == "c" and pattern[at + 1 : at + 2].isascii() and pattern[at + 1 : at + 2].isalpha():
        return ord(pattern[at + 1]) & 31, at + 2
    if (found := _HEX.match(pattern, at)) is not None:
        code, at = int(next(filter(None, found.groups())), 16), found.end()
        if 0xD800 <= code < 0xDC00 and (low := _LOW_SURROGATE.match(pattern, at)) is not None:
            return 0x10000 + ((code - 0xD800) << 10) + int(low[1], 16) - 0xDC00, low.end()
        return code, at
    return ord(char), at + 1


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    """A class, behind its bracket."""
    negated = pattern[at : at + 1] == "^"
    at += negated
    ranges: list[Range] = []
    others: list[str] = []
    while at < len(pattern) and pattern[at] != "]":
        low, at = _item(pattern, at, ranges, others, negated)
        if low is None or pattern[at : at + 1] != "-" or pattern[at + 1 : at + 2] in ("]", ""):
            ranges += [] if low is None else [(low, low)]
            continue
        high, after = _item(pattern, at + 1, ranges, others, negated)
        ranges += [(low, low), (0x2D, 0x2D)] if high is None else [(low, high)]
        at = after
    if at >= len(pattern):
        return "[", at
    return _class(ranges, others, negated=negated), at + 1


def _item(pattern: str, at: int, ranges: list[Range], others: list[str], negated: bool) -> tuple[int | None, int]:
    """One member of a class as a code point; None where it is a set, which has then been added."""
    if pattern[at] != "\\":
        return ord(pattern[at]), at + 1
    char = pattern[at + 1 : at + 2]
    if (found := _PROPERTY.match(pattern, at + 1)) is not None:
        others.append(f"\\{found[0]}")
        return None, found.end()
    if char == "b":
        return 0x08, at + 2
    if char and char in "sSdDwW":
        members, opposite = _shorthand(char.swapcase() if negated and char in "sS" else char)
        ranges += _complement(members) if opposite != (negated and char in "sS") else members
        return None, at + 2
    return _character(pattern, at + 1)


def _complement(ranges: Sequence[Range]) -> list[Range]:
    found, following = [], 0
    for low, high in sorted(ranges):
        if low > following:
            found.append((following, low - 1))
        following = max(following, high + 1)
    return [*found, (following, _LAST)] if following <= _LAST else found


def _class(ranges: Sequence[Range], others: Sequence[str] = (), *, negated: bool) -> str:
    """A class in Rust's words. One that holds all control characters, but not the quote or the backslash, leaves out
    NUL: inside of JSON strings the compiler would take the two for members (llguidance 1.9)."""
    ranges = sorted(ranges)
    if not ranges and not others:
        return r"[^\x00-\x{10ffff}]" if not negated else r"[\x00-\x{10ffff}]"
    if not all(_holds(ranges, negated, code) for code in _ESCAPED_IN_JSON) and all(
        _holds(ranges, negated, code) for code in range(0x20) if code != 0x0A
    ):
        ranges = [(0, 0), *ranges] if negated else [(max(low, 1), high) for low, high in ranges if high > 0]
    body = "".join(written(low) + (f"-{written(high)}" if high != low else "") for low, high in ranges)
    return f"[{'^' if negated else ''}{body}{''.join(others)}]"


def _holds(ranges: Sequence[Range], negated: bool, code: int) -> bool:
    return any(low <= code <= high for low, high in ranges) != negated


def written(code: int) -> str:
    """A character in a pattern of Rust's, or in a class."""
    if 0x30 <= code <= 0x39 or 0x41 <= code <= 0x5A or 0x61 <= code <= 0x7A:
        return chr(code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\x{{{code:x}}}"
