"""One JSON value, validated and copied as it arrives.

What the model wrote is copied byte for byte. The repairs are those that can be made without looking ahead: raw
control characters in a string are escaped, a backslash that begins no escape is doubled, a trailing comma is left
out, doubled outer braces are read as one, and Python spellings (True, None, 'text', tuples) become JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring

from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, peek, skip_space, until

MAX_DEPTH = 200
"""Deeper values are no calls: json.loads of every client must be able to read the arguments."""

MAX_ATOM = 4096
"""A longer number is none: Python's json.loads reads up to 4,300 digits. Grammars allow numbers of any length, and
random models write hundreds of digits."""

MAX_WORD = 400
"""Longer text without quotes is no value."""

_RUN = {q: re.compile(rf'[^{q}"\\\x00-\x1f]+') for q in "\"'"}
_FULL = {q: run.fullmatch for q, run in _RUN.items()}
_SPACES = re.compile(r"[ \t\r\n]+")
_ATOM = re.compile(r"[^\s,:;\]})\[{(\"'<>`]+")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_LOOSE_NUMBER = re.compile(r"([+-]?)([0-9][0-9_]*)?(?:\.([0-9_]*))?([eE][+-]?[0-9]+)?")
_PYTHON_ESCAPES = {"a": "\\u0007", "v": "\\u000b", "\n": "", "x": "", "U": "", **dict.fromkeys("01234567", "")}
_WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}


def escape(text: str) -> str:
    """The inside of a JSON string that means this text; non-ASCII stays itself."""
    return encode_basestring(text)[1:-1]


def quote(text: str) -> str:
    return encode_basestring(text)


def number(text: str) -> str | None:
    """A number as JSON writes it, None if it is none. ``007``, ``+1``, ``.5``, ``1_000`` are put right."""
    if _NUMBER.fullmatch(text):
        return text
    found = _LOOSE_NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = found.groups()
    if not whole and not fraction:
        return None
    digits = (whole or "0").replace("_", "").lstrip("0") or "0"
    fraction = (fraction or "").replace("_", "")
    return ("-" if sign == "-" else "") + digits + (f".{fraction}" if fraction else "") + (exponent or "")


def is_object(text: str) -> bool:
    """Whether the text is strict JSON and an object."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(name)


def read_string(lx: Lexer, put: Put, *, quick: bool = True, python: bool = False, raw: bool = False) -> Read[None]:
    """A quoted string, put as a JSON string with its quotes. Stands on the opening quote.

    quick: put may be called for text that the lexer has not seen. python: three quotes may stand for one.
    raw: a backslash is itself, and a quote behind it does not end the string.
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
    run, full = _RUN[mark].match, _FULL[mark]
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
        if char == mark:
            put('"')
            return
        put(escape(char))


def _read_raw_pair(lx: Lexer, put: Put) -> Read[None]:
    yield from _have(lx, 2)
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
    yield from _have(lx, 2)
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


def _have(lx: Lexer, size: int) -> Read[None]:
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
            yield from _have(lx, size + 2)
            if lx.buf[lx.pos + 1 + size] not in "01234567":
                break
            size += 1
        lx.pos -= 1
        base = 8
    if not size:
        put(_PYTHON_ESCAPES[char])
        lx.pos += 2
        return
    yield from _have(lx, size + 2)
    try:
        put(escape(chr(int(lx.buf[lx.pos + 2 : lx.pos + 2 + size], base))))
        lx.pos += 2 + size
    except (ValueError, OverflowError):
        put("\\\\")
        lx.pos += 1


def _hex_prefix(text: str, pos: int) -> bool:
    return all(c in "0123456789abcdefABCDEF" for c in text[pos : pos + 4])


def read_text(lx: Lexer, accept: Callable[[str], bool] | None = None) -> Read[str]:
    """A quoted string, decoded. accept: asked for the text so far after each character; False is NoCall there."""
    parts: list[str] = []
    put: Put = parts.append if accept is None else checked(lx, parts, lambda text: accept(text[1:]))
    yield from read_string(lx, put, quick=accept is None)
    return str(json.loads("".join(parts)))


def checked(lx: Lexer, parts: list[str], accept: Callable[[str], bool]) -> Put:
    """A put for readers that stand at the beginning of the piece they put: it raises NoCall at the first character
    that accept refuses, wherever the text was cut."""

    def put(piece: str) -> None:
        before = "".join(parts)
        parts.append(piece)
        if not accept(before + piece):
            lx.pos += next(n for n in range(1, len(piece) + 1) if not accept(before + piece[:n]))
            raise NoCall

    return put


def read_atom(lx: Lexer, put: Put) -> Read[None]:
    """A number, true, false or null, put whole."""
    while True:
        found = _ATOM.match(lx.buf, lx.pos)
        if found is None:
            raise NoCall
        if len(found.group()) > (MAX_ATOM if found.group()[0] in "-0123456789" else MAX_WORD):
            raise NoCall
        if found.end() < len(lx.buf) or lx.at_end():
            break
        yield
    word = found.group()
    text = _WORDS.get(word) or number(word)
    if text is None:
        raise NoCall
    lx.pos = found.end()
    put(text)


class _Frame:
    """Where a value stands between its tokens."""

    __slots__ = ("closers", "comma", "fresh", "need", "python")

    def __init__(self, python: bool) -> None:
        self.python = python
        self.closers: list[str] = []
        self.comma = ""
        """A comma, with the white space after it, that is not written yet: it may be a trailing one."""
        self.fresh = False
        """The container has just opened: it may close without a value."""
        self.need = "value"


def read_value(
    lx: Lexer, put: Put, commit: Callable[[], None] | None = None, *, python: bool = False, inside: bool = False
) -> Read[None]:
    """One JSON value of any kind. commit is called once the first value inside an object has begun (or the
    object has closed): from there on the text is taken for what it seems to be. inside: the opening brace of an
    object has been read and put."""
    frame = _Frame(python)
    if inside:
        _open(frame, "{")
    while True:
        buf, pos = lx.buf, lx.pos
        if pos >= len(buf):
            if lx.at_end():
                raise NoCall
            yield
            continue
        char = buf[pos]
        if char in SPACE:
            found = _SPACES.match(buf, pos)
            assert found is not None
            lx.pos = found.end()
            if frame.comma:
                frame.comma += found.group()
            else:
                put(found.group())
            continue
        need = frame.need
        if need == "comma":
            _after_value(lx, frame, char, put)
        elif need == "colon":
            if char != ":":
                raise NoCall
            put(":")
            lx.pos += 1
            frame.need = "value"
        elif char in "]})":
            _close(lx, frame, char, put)
        elif need == "key":
            if char not in "\"'":
                raise NoCall
            _flush_comma(frame, put)
            frame.fresh = False
            yield from read_string(lx, put, python=python)
            frame.need = "colon"
        else:
            yield from _begin_value(lx, frame, char, put, commit)
        if frame.need == "comma" and not frame.closers:
            if commit is not None:
                commit()
            return


def _open(frame: _Frame, char: str) -> None:
    frame.closers.append({"{": "}", "[": "]", "(": ")"}[char])
    frame.need = "key" if char == "{" else "value"
    frame.fresh = True


def _flush_comma(frame: _Frame, put: Put) -> None:
    if frame.comma:
        put(frame.comma)
        frame.comma = ""


def _after_value(lx: Lexer, frame: _Frame, char: str, put: Put) -> None:
    if char == ",":
        lx.pos += 1
        frame.comma = ","
        frame.need = "key" if frame.closers[-1] == "}" else "value"
    else:
        _close(lx, frame, char, put)


def _close(lx: Lexer, frame: _Frame, char: str, put: Put) -> None:
    """A closing bracket: allowed after a value, after a trailing comma, and in an empty container."""
    allowed = frame.need == "comma" or frame.fresh or frame.comma
    if not allowed or not frame.closers or frame.closers[-1] != char:
        raise NoCall
    frame.comma = ""
    frame.fresh = False
    frame.closers.pop()
    lx.pos += 1
    put("]" if char == ")" else char)
    frame.need = "comma"


def _begin_value(lx: Lexer, frame: _Frame, char: str, put: Put, commit: Callable[[], None] | None) -> Read[None]:
    _flush_comma(frame, put)
    frame.fresh = False
    raw = False
    if frame.python and char in "rRu":
        yield from _have(lx, 2)
        if lx.buf[lx.pos + 1] in "\"'":
            raw = char != "u"
            lx.pos += 1
            char = lx.buf[lx.pos]
    begun = commit if commit is not None and frame.closers else _nothing
    if char in "{[(\"'":
        begun()
    if char in "{[(":
        if len(frame.closers) >= MAX_DEPTH:
            raise NoCall
        _open(frame, char)
        put("[" if char == "(" else char)
        lx.pos += 1
        return
    if char in "\"'":
        yield from read_string(lx, put, python=frame.python, raw=raw)
    else:
        yield from read_atom(lx, put)
        begun()
    frame.need = "comma"


def _nothing() -> None:
    return None


def read_object(lx: Lexer, put: Put, commit: Callable[[], None] | None = None) -> Read[None]:
    """A JSON object; ``{{ ... }}`` is read as ``{ ... }``. Stands on the opening brace."""
    held: list[str] = []
    lx.pos += 1
    doubled = (yield from skip_space(lx, held.append)) == "{"
    if doubled:
        lx.pos += 1
    put("{" if doubled else "{" + "".join(held))
    yield from read_value(lx, put, commit, inside=True)
    if doubled and (yield from skip_space(lx)) == "}":
        lx.pos += 1


def decode_all(reader: Callable[[Lexer, Put], Read[None]], text: str) -> str | None:
    """Runs a reader over a whole text; the JSON it put, None if the text is not wholly such a value."""
    lx = Lexer()
    lx.append(text.strip())
    lx.eof = True
    parts: list[str] = []
    try:
        for _ in reader(lx, parts.append):
            return None
    except NoCall:
        return None
    return "".join(parts) if lx.pos == len(lx.buf) else None


def loose_json(text: str) -> str | None:
    """Strict JSON of a value written as JSON or as a Python literal; None if it is neither."""
    return decode_all(read_value, text)
