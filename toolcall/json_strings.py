"""One quoted string, copied as it arrives, with the repairs that need no looking ahead.

Raw control characters are escaped, a backslash that begins no escape is doubled, an apostrophe in front of a letter
ends nothing (``'it's'``), nor do quotes in front of a word (``"say "hi" to"``); Python's escapes become JSON's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from toolcall.json_text import encodable, escape
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, at_words, peek, skip_space, until

_RUN = {q: re.compile(rf'[^{q}"\\\x00-\x1f]+') for q in "\"'"}
_FULL = {q: run.fullmatch for q, run in _RUN.items()}
_WHOLE = re.compile(r'"[^"\\\x00-\x1f]+"(?=[,:}\]])')
"""A string in which there is nothing to be looked at, and behind which it certainly ends."""
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_PREFIX = re.compile(r"([rRuUfF]{0,2})([\"']?)")
_BEHIND = SPACE + ',:;}])[{<+`"'
"""What may stand behind the quote that ends a string, or behind a string where nothing should stand."""
_ENDS = (",", ":", "}", "]")
"""Of these, what is none of the string's own."""
_BEHIND_PYTHON = _BEHIND + "'.%*=!"
TYPOGRAPHIC = "“”„`"
"""Quotes that JSON does not have."""
LOOK_AHEAD = 128
_NEXT = r",\s*+[\"'“”„`\[{(\w+-]"
_AFTER: Mapping[str | None, tuple[re.Pattern[str], re.Pattern[str]]] = {
    "": (
        re.compile(r"\s*+(?:,\s*+[A-Za-z_]\w*+\s*+=(?!=)|\)\s*+[\w\],;<`])"),
        re.compile(r"\s*+(?:,\s*+(?:[A-Za-z_]\w*+\s*+=?+)?+|\)\s*+)?+"),
    ),
    None: (re.compile(rf"\s*+(?:[:：;\]}})]|{_NEXT}|，\s*+[\"“”„])"), re.compile(r"\s*+(?:[,，]\s*+)?+")),
    **{close: (re.compile(rf"\s*+(?:[:\{close}]|{_NEXT})"), re.compile(r"\s*+(?:,\s*+)?+")) for close in "]})"},
}
"""By the bracket that closes what a string stands in: what may follow it, and the beginnings of that. "" for
parentheses of a call."""
_BREAKS = re.compile(r"(?:\\[nrt]|\s)*+")
_BRACE = re.compile(r"[{}]")
_PLUS = re.compile(r"\s*+(?:\+\s*+([\"'])?)?")
_PYTHON_ESCAPES = {"a": "\\u0007", "v": "\\u000b", "\n": "", "x": "", "U": "", **dict.fromkeys("01234567", "")}


def opens_string(lx: Lexer, char: str) -> bool:
    """Whether a string begins with this character here."""
    return char != "" and (char in "\"'" or (lx.ends is not None and char in TYPOGRAPHIC))


def read_python_string(lx: Lexer, put: Put, inside: str = "") -> Read[bool]:
    """Python's string literals, prefixed or not; neighbours are one string. inside: see ``_Quoted``. False, nothing
    consumed, where none begins. Bytes, and f-strings that hold an expression, are no call."""
    prefix = yield from _prefix(lx)
    if prefix is None:
        return False
    put('"')
    while prefix is not None:
        lx.pos += len(prefix)
        formatted, raw = "f" in prefix.lower(), "r" in prefix.lower()
        take = _inside(put, formatted)
        yield from read_string(lx, take, quick=not formatted, python=True, raw=raw, inner=True, inside=inside)
        char = yield from skip_space(lx)
        if char == "" and lx.cut:
            raise NoCall
        if char == "+":
            lx.pos += 1
            yield from skip_space(lx)
        prefix = yield from _prefix(lx)
        if char == "+" and prefix is None:
            raise NoCall
    put('"')
    return True


def _prefix(lx: Lexer) -> Read[str | None]:
    """What stands before the quote of a string literal here; None where there is none."""
    while True:
        found = _PREFIX.match(lx.buf, lx.pos)
        if found is None:
            return None
        if found.group(2):
            return found.group(1)
        if found.end() < len(lx.buf) or lx.at_end():
            return None
        yield


def _inside(put: Put, formatted: bool) -> Put:
    """A put for a string without its quotes: no other piece is a quote that is not escaped."""

    def take(piece: str) -> None:
        if formatted and (found := _BRACE.search(piece)) is not None:
            if found.start():
                put(piece[: found.start()])
            raise NoCall
        if piece not in ('"', '""'):
            put(piece)

    return take


@dataclass(slots=True)
class _Quoted:
    """A string that is being read: mark, the quote around it, and what the quotes inside of it mean.

    inner: see ``read_string``. inside: the bracket that closes what the string stands in, "" in parentheses of a call.
    """

    mark: str
    python: bool
    inner: bool
    inside: str
    opened: bool = False
    """Of two quotes that are the string's own the second is to come."""
    seen: bool = False
    """There was an apostrophe, or a quote in front of a word."""

    def ends_here(self, lx: Lexer) -> bool:
        """Whether the quote in front of this place certainly ends the string. Only saves time."""
        return self.mark == '"' and not self.opened and lx.buf[lx.pos : lx.pos + 1] in _ENDS

    def holds_quote(self, lx: Lexer) -> Read[bool]:
        """Whether the quote in front of this place is a part of the string."""
        if self.mark == "'":
            if (yield from peek(lx)).isalnum():
                self.seen = True
                return True
            return self.seen and not (yield from _ends_value(lx, self.inside if self.inner else None))
        if not self.inner:
            return False
        behind = _BEHIND_PYTHON if self.python else _BEHIND
        if not self.opened and not (yield from _opens_inner(lx, behind, self.python)):
            return False
        self.opened = not self.opened
        return True


def read_string(
    lx: Lexer,
    put: Put,
    *,
    quick: bool = True,
    python: bool = False,
    raw: bool = False,
    inner: bool = False,
    inside: str = "",
) -> Read[None]:
    """A quoted string, put as a JSON string with its quotes. Stands on the opening quote.

    quick: put may be called for text that the lexer has not seen. python: three quotes may stand for one.
    raw: a backslash is itself, and a quote behind it does not end the string. inner: so are two quotes, the first of
    which stands in front of a word, where the end of the string could not stand; three may stand for one.
    """
    if not python and (whole := _WHOLE.match(lx.buf, lx.pos)) is not None:
        put(whole.group())
        lx.pos = whole.end()
        return
    mark = lx.buf[lx.pos]
    if mark in TYPOGRAPHIC:
        yield from _read_typographic(lx, put)
        return
    lx.pos += 1
    if python and (yield from peek(lx)) == mark:
        lx.pos += 1
        if (char := (yield from peek(lx))) != mark:
            if not char and lx.cut:
                raise NoCall
            put('""')
            return
        lx.pos += 1
        yield from _read_triple(lx, put, mark * 3, raw, quick)
        return
    plain = lx.buf[lx.pos : lx.pos + 1] not in ("", mark)  # saves time
    if inner and mark == '"' and not python and not plain and (yield from at_words(lx, ('""',))):
        lx.pos += 2
        yield from _read_triple(lx, put, mark * 3, raw, quick)
        return
    put('"')
    quoted = _Quoted(mark, python, inner, inside)
    while True:
        yield from _read_plain(lx, put, quoted, raw=raw, quick=quick)
        if python or not inner or lx.buf[lx.pos : lx.pos + 1] in _ENDS or (again := (yield from _goes_on(lx))) is None:
            break
        quoted = _Quoted(again, python, inner, inside)
    put('"')


def _read_plain(lx: Lexer, put: Put, quoted: _Quoted, *, raw: bool, quick: bool) -> Read[None]:
    """Up to behind the quote that ends the string."""
    run, full = _RUN[quoted.mark].match, _FULL[quoted.mark]
    while True:
        found = run(lx.buf, lx.pos)
        if found is not None:
            put(found.group())
            lx.pos = found.end()
        if lx.pos >= len(lx.buf):
            if lx.at_end():
                raise NoCall
            if quick:
                lx.run, lx.put = full, put
            yield
            continue
        char = lx.buf[lx.pos]
        if char == "\\":
            yield from _read_raw_pair(lx, put) if raw else _read_escape(lx, put, quoted.python)
            continue
        lx.pos += 1
        if char == quoted.mark and (quoted.ends_here(lx) or not (yield from quoted.holds_quote(lx))):
            return
        put(escape(char))


def _ends_value(lx: Lexer, inside: str | None) -> Read[bool]:
    """Whether what follows goes on behind a string, so that it ends here. inside: see ``_Quoted``; None for a key."""
    whole, part = _AFTER.get(inside, _AFTER[None])
    while True:
        rest = lx.buf[lx.pos : lx.pos + LOOK_AHEAD]
        if whole.match(rest) is not None:
            return True
        if part.fullmatch(rest) is None or len(rest) == LOOK_AHEAD or lx.at_end():
            return part.fullmatch(rest) is not None
        yield


def _goes_on(lx: Lexer) -> Read[str | None]:
    """``"a" + "b"``: the quote of the next part, which is consumed with all in front of it."""
    while lx.ends is not None:
        rest = lx.buf[lx.pos : lx.pos + LOOK_AHEAD]
        found = _PLUS.match(rest)
        assert found is not None
        if found.group(1):
            lx.pos += found.end()
            return found.group(1)
        if found.end() < len(rest) or len(rest) == LOOK_AHEAD or lx.at_end():
            break
        yield
    return None


def _read_typographic(lx: Lexer, put: Put) -> Read[None]:
    """``“text”``, however the two are turned, and JavaScript's backticks: they end where the JSON around them goes on
    or ends."""
    ends = "`" if lx.buf[lx.pos] == "`" else TYPOGRAPHIC + '"'
    run = re.compile(rf"[^{ends}\\]+").match
    lx.pos += 1
    put('"')
    while True:
        found = run(lx.buf, lx.pos)
        if found is not None:
            put(escape(found.group()))
            lx.pos = found.end()
        if lx.pos >= len(lx.buf):
            if lx.at_end():
                raise NoCall
            yield
            continue
        char = lx.buf[lx.pos]
        if char == "\\":
            yield from _read_escape(lx, put)
            continue
        lx.pos += 1
        if (yield from _ends_value(lx, None)):
            put('"')
            return
        put(escape(char))


def _opens_inner(lx: Lexer, behind: str, python: bool) -> Read[bool]:
    after = yield from peek(lx)
    if not after or after in behind:
        return False
    if after == "\\" and lx.ends is not None and (yield from _breaks_off(lx)):
        return False
    return not python or (yield from _prefix(lx)) is None


def _breaks_off(lx: Lexer) -> Read[bool]:
    """Whether line ends written as escapes follow, and then more of the JSON around the string."""
    while True:
        rest = lx.buf[lx.pos : lx.pos + LOOK_AHEAD]
        found = _BREAKS.match(rest)
        assert found is not None
        after = rest[found.end() :]
        if (after and after != "\\") or len(rest) == LOOK_AHEAD or lx.at_end():
            return after[:1] in (",", ":", "}", "]")
        yield


def _read_raw_pair(lx: Lexer, put: Put) -> Read[None]:
    yield from have(lx, 2)
    put("\\\\" + escape(lx.buf[lx.pos + 1]))
    lx.pos += 2


def _read_triple(lx: Lexer, put: Put, mark: str, raw: bool, quick: bool) -> Read[None]:
    ends = Markers((mark, "\\"))
    put('"')
    while True:
        word = yield from until(lx, ends, lambda text: put(escape(text)), keep=True, quick=quick)
        if word is None:
            raise NoCall
        if word == mark:
            lx.pos += 3
            put('"')
            return
        yield from _read_raw_pair(lx, put) if raw else _read_escape(lx, put, python=True)


def _read_escape(lx: Lexer, put: Put, python: bool = False) -> Read[None]:
    yield from have(lx, 2)
    char = lx.buf[lx.pos + 1]
    if python and char in _PYTHON_ESCAPES:
        yield from _read_python_escape(lx, put, char)
    elif char == "u":
        while len(lx.buf) - lx.pos < 6 and not lx.at_end() and _hex_prefix(lx.buf, lx.pos + 2):
            yield
        if len(lx.buf) - lx.pos < 6 and _hex_prefix(lx.buf, lx.pos + 2):
            raise NoCall
        put("\\u" if _HEX4.match(lx.buf, lx.pos + 2) else "\\\\u")
        lx.pos += 2
    elif char in '"\\bfnrt' or (char == "/" and not python):
        put("\\" + char)
        lx.pos += 2
    elif char == "'":
        put("'")
        lx.pos += 2
    else:
        put("\\\\")
        lx.pos += 1


def have(lx: Lexer, size: int) -> Read[None]:
    while len(lx.buf) - lx.pos < size:
        if lx.at_end():
            raise NoCall
        yield


def _read_python_escape(lx: Lexer, put: Put, char: str) -> Read[None]:
    """``\\x41``, ``\\U0001F600``, ``\\101``, ``\\a``, ``\\v`` and an escaped line end."""
    size = {"x": 2, "U": 8}.get(char, 0)
    base = 16
    if char in "01234567":
        size = 0
        while size < 3:
            yield from have(lx, size + 2)
            if lx.buf[lx.pos + 1 + size] not in "01234567":
                break
            size += 1
        lx.pos -= 1
        base = 8
    if not size:
        if _PYTHON_ESCAPES[char]:
            put(_PYTHON_ESCAPES[char])
        lx.pos += 2
        return
    yield from have(lx, size + 2)
    try:
        put(encodable(escape(chr(int(lx.buf[lx.pos + 2 : lx.pos + 2 + size], base)))))
        lx.pos += 2 + size
    except (ValueError, OverflowError):
        put("\\\\")
        lx.pos += 1


def _hex_prefix(text: str, pos: int) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text[pos : pos + 4])


def read_text(lx: Lexer, accept: Callable[[str], bool] | None = None) -> Read[str]:
    """A quoted string, decoded. accept: asked for the text so far after each character; False is NoCall there."""
    parts: list[str] = []
    put: Put = parts.append if accept is None else checked(lx, parts, lambda text: "\\" in text or accept(text[1:]))
    yield from read_string(lx, put, quick=accept is None)
    return str(json.loads("".join(parts)))


def checked(lx: Lexer, parts: list[str], accept: Callable[[str], bool]) -> Put:
    """A put for readers that stand at the beginning of the piece they put: it raises NoCall at the first character
    that accept refuses, wherever the text was cut."""

    def put(piece: str) -> None:
        before = "".join(parts)
        parts.append(piece)
        for size in range(1, len(piece) + 1):
            if not accept(before + piece[:size]):
                lx.pos += size
                raise NoCall

    return put
