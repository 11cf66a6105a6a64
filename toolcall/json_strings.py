"""One quoted string, copied as it arrives, with the repairs that need no looking ahead.

Raw control characters are escaped, a backslash that begins no escape is doubled, an apostrophe in front of a letter
ends nothing (``'it's'``), nor do quotes in front of a word (``"say "hi" to"``); Python's escapes become JSON's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from toolcall.json_text import encodable, escape
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, at_words, peek, skip_space, until

_RUN = {q: re.compile(rf'[^{q}"\\\x00-\x1f]+') for q in "\"'"}
_FULL = {q: run.fullmatch for q, run in _RUN.items()}
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_PREFIX = re.compile(r"([rRuUfF]{0,2})([\"']?)")
_BEHIND = SPACE + ',:;}])[{<+`"'
"""What may stand behind the quote that ends a string, or behind a string where nothing should stand."""
_BEHIND_PYTHON = _BEHIND + "'.%*=!"
_PYTHON_ESCAPES = {"a": "\\u0007", "v": "\\u000b", "\n": "", "x": "", "U": "", **dict.fromkeys("01234567", "")}


def read_python_string(lx: Lexer, put: Put) -> Read[bool]:
    """Python's string literals, prefixed or not; neighbours are one string. False, nothing consumed, where none
    begins. Bytes, and f-strings that hold an expression, are no call."""
    prefix = yield from _prefix(lx)
    if prefix is None:
        return False
    put('"')
    while prefix is not None:
        lx.pos += len(prefix)
        formatted, raw = "f" in prefix.lower(), "r" in prefix.lower()
        yield from read_string(lx, _inside(put, formatted), quick=not formatted, python=True, raw=raw, inner=True)
        if (yield from skip_space(lx)) == "" and lx.cut:
            raise NoCall
        prefix = yield from _prefix(lx)
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
        if formatted and ("{" in piece or "}" in piece):
            raise NoCall
        if piece not in ('"', '""'):
            put(piece)

    return take


def read_string(
    lx: Lexer, put: Put, *, quick: bool = True, python: bool = False, raw: bool = False, inner: bool = False
) -> Read[None]:
    """A quoted string, put as a JSON string with its quotes. Stands on the opening quote.

    quick: put may be called for text that the lexer has not seen. python: three quotes may stand for one.
    raw: a backslash is itself, and a quote behind it does not end the string. inner: so are two quotes, the first of
    which stands in front of a word, where the end of the string could not stand; three may stand for one.
    """
    mark = lx.buf[lx.pos]
    lx.pos += 1
    if python and (yield from peek(lx)) == mark:
        lx.pos += 1
        if (char := (yield from peek(lx))) != mark:
            if not char and lx.cut:
                raise NoCall
            put('""')
            return
        lx.pos += 1
        yield from _read_triple(lx, put, mark * 3, raw)
        return
    if inner and mark == '"' and not python and (yield from at_words(lx, ('""',))):
        lx.pos += 2
        yield from _read_triple(lx, put, mark * 3, raw)
        return
    run, full = _RUN[mark].match, _FULL[mark]
    behind = (_BEHIND_PYTHON if python else _BEHIND) if inner else ""
    opened = False
    put('"')
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
            yield from _read_raw_pair(lx, put) if raw else _read_escape(lx, put, python)
            continue
        lx.pos += 1
        if char != mark:
            put(escape(char))
        elif mark == "'" and (yield from peek(lx)).isalnum():
            put(char)
        elif mark == '"' and behind and (opened or (yield from _opens_inner(lx, behind, python))):
            opened = not opened
            put('\\"')
        else:
            put('"')
            return


def _opens_inner(lx: Lexer, behind: str, python: bool) -> Read[bool]:
    after = yield from peek(lx)
    if not after or after in behind:
        return False
    return not python or (yield from _prefix(lx)) is None


def _read_raw_pair(lx: Lexer, put: Put) -> Read[None]:
    yield from have(lx, 2)
    put("\\\\" + escape(lx.buf[lx.pos + 1]))
    lx.pos += 2


def _read_triple(lx: Lexer, put: Put, mark: str, raw: bool) -> Read[None]:
    ends = Markers((mark, "\\"))
    put('"')
    while True:
        word = yield from until(lx, ends, lambda text: put(escape(text)), keep=True)
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
