"""One JSON value, validated and copied as it arrives.

What the model wrote is copied byte for byte. The repairs are those that can be made without looking ahead: those of
strings (toolcall.json_strings), a trailing comma is left out, a missing one is put in, doubled outer braces are read as
one, and the spellings of other languages (True, None, 'text', tuples, sets, undefined) become JSON.

Inside marks that say that a call stands here (``Lexer.ends``) more is read: comments, line ends written as ``\\n``
between values, commas twice, words without quotes, and brackets that are missing, wrong or one too many.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from toolcall.json_strings import have, opens_string, read_python_string, read_string
from toolcall.json_text import WORDS, number, quote
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Put, Read, ends_here, ignore, skip_space, until

MAX_DEPTH = 200
"""Deeper values are no calls: json.loads of every client must be able to read the arguments."""

MAX_ATOM = 4096
"""A longer number is none: Python's json.loads reads up to 4,300 digits. Grammars allow numbers of any length, and
random models write hundreds of digits."""

_MAX_DOUBLED = 8

MAX_WORD = 400
"""Longer text without quotes is no value."""

_WORD = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")
_OTHER_BASE = re.compile(r"[+-]?0(?:[xX][0-9a-fA-F]{1,16}|[oO][0-7]{1,22}|[bB][01]{1,64})")
_SPACES = re.compile(f"[{SPACE}]+")
_JSON_SPACE = {ord(char): " " for char in SPACE if char not in " \t\r\n"}
"""What is white space here, and not in JSON."""
_ATOM = re.compile(r"[^\s,:;\]})\[{(\"'<>`]+")
_PHRASE = re.compile(r"[^\s,:;\]})\[{(\"'<>`][^,;\]})\[{(\"'<>`\n]*")
_LINE_END, _COMMENT_END = Markers(("\n",)), Markers(("*/",))
_COMMAS, COLONS = ",;，", ":=："
_BEGINS_VALUE = '"{[-0123456789tfnTFN'
"""What a value certainly begins with, behind a key without a colon."""
_NOISE = "\\/#"
"""What comments begin with, and line ends that are written as escapes."""
_ODD = frozenset(_NOISE + _COMMAS + COLONS)
_USUAL = {"comma": ",", "colon": ":"}
_OTHER_WORDS = {"TRUE": "true", "FALSE": "false", "NULL": "null", "undefined": "null"}
_NO_NUMBER = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
"""What JSON has no word for is text, as in tags."""


def read_atom(lx: Lexer, put: Put, *, python: bool = False) -> Read[None]:
    """A number, true, false or null, put whole. In Python ``NaN`` would be a variable, and is no call."""
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
    text = WORDS.get(word) or number(word) or _other_base(word)
    if text is None and not python:
        text = _OTHER_WORDS.get(word) or (quote(word) if _NO_NUMBER.fullmatch(word) else None)
        if text is None and lx.ends is not None:
            yield from _read_phrase(lx, put)
            return
    if text is None:
        raise NoCall
    lx.pos = found.end()
    put(text)


def _read_phrase(lx: Lexer, put: Put) -> Read[None]:
    """Words without quotes, which are the text that they say."""
    while True:
        found = _PHRASE.match(lx.buf, lx.pos)
        if found is None or len(found.group()) > MAX_WORD:
            raise NoCall
        if found.end() < len(lx.buf) or lx.at_end():
            break
        yield
    if lx.buf[found.end() : found.end() + 1] in "\"'([{<>`":
        raise NoCall
    lx.pos = found.end()
    put(quote(found.group().rstrip(SPACE)))


def _other_base(word: str) -> str | None:
    """``0x1F``, ``0o17`` and ``0b1`` as decimals."""
    return str(int(word, 0)) if _OTHER_BASE.fullmatch(word) else None


class _Frame:
    """Where a value stands between its tokens."""

    __slots__ = ("closers", "comma", "fresh", "need", "python")

    def __init__(self, python: bool) -> None:
        self.python = python
        self.closers: list[str] = []
        """For each open container the bracket that closes it, and the one that is written then."""
        self.comma = ""
        """A comma, with the white space after it, that is not written yet: it may be a trailing one."""
        self.fresh = False
        """The container has just opened: it may close without a value. Of no account where a value has ended or a
        comma stands; so only a key, which no bracket may follow, takes it back."""
        self.need = "value"


def read_value(
    lx: Lexer, put: Put, commit: Callable[[], None] | None = None, *, python: bool = False, inside: bool = False
) -> Read[None]:
    """One JSON value of any kind. commit is called once the first value inside an object has begun (or the
    object has closed): from there on the text is taken for what it seems to be. inside: the opening brace of an
    object has been read and put."""
    frame = _Frame(python)
    odd: frozenset[str] = frozenset() if lx.ends is None else _ODD | lx.ends.first
    if inside:
        _open(frame, "{")
    while True:
        buf, pos = lx.buf, lx.pos
        if pos >= len(buf):
            if lx.at_end():
                if lx.ends is None or lx.ends.words or frame.need != "comma":
                    raise NoCall
                _close_all(frame, put)
                return
            yield
            continue
        char = buf[pos]
        if char in SPACE:
            found = _SPACES.match(buf, pos)
            assert found is not None
            lx.pos = found.end()
            space = found.group().translate(_JSON_SPACE)
            if frame.comma:
                frame.comma += space
            else:
                put(space)
            continue
        need = frame.need
        if char in odd and char != _USUAL.get(need) and (yield from _mended(lx, frame, char, put)):
            pass
        elif need == "comma":
            _after_value(lx, frame, char, put)
        elif need == "colon":
            read_colon(lx, char, put)
            frame.need = "value"
        elif char in "]})":
            _close(lx, frame, char, put)
        elif need == "key":
            _flush_comma(frame, put)
            frame.fresh = False
            yield from _read_key(lx, put, char, python)
            frame.need = "colon"
        else:
            yield from _begin_value(lx, frame, char, put, commit)
        if frame.need == "comma" and not frame.closers:
            if commit is not None:
                commit()
            return


def _mended(lx: Lexer, frame: _Frame, char: str, put: Put) -> Read[bool]:
    """Passes over what says nothing: a comment, a line end written as an escape, a comma or colon too many. Where the
    call ends although brackets are missing, writes them. Returns whether there was any of that."""
    assert lx.ends is not None
    if char in _NOISE:
        return (yield from _pass_comment(lx, char, python=frame.python))
    if char in _COMMAS and frame.need in ("key", "value"):
        passed = bool(frame.comma or frame.fresh)
        lx.pos += passed
        return passed
    if char in COLONS and frame.need == "value" and frame.closers[-1:] == ["}}"]:
        lx.pos += 1
        return True
    if char in lx.ends.first and (frame.need == "comma" or frame.comma) and (yield from ends_here(lx)):
        _close_all(frame, put)
        return True
    return False


def _pass_comment(lx: Lexer, char: str, *, python: bool) -> Read[bool]:
    if char != "#":
        yield from have(lx, 2)
    elif not python:
        return False
    after = lx.buf[lx.pos + 1 : lx.pos + 2]
    if char == "\\" and after in "nrt":
        lx.pos += 2
        return True
    if char == "\\" or (char == "/" and after not in "/*"):
        return False
    word = yield from until(lx, _COMMENT_END if char == "/" and after == "*" else _LINE_END, ignore)
    lx.pos += len(word or "")
    return True


def skip_noise(lx: Lexer, *, python: bool = False) -> Read[str]:
    """Consumes white space, and comments where a call is marked off; returns the character behind them, "" at the end
    of input."""
    while True:
        char = yield from skip_space(lx)
        if lx.ends is None or not char or char not in _NOISE:
            return char
        if not (yield from _pass_comment(lx, char, python=python)):
            return char


def _read_key(lx: Lexer, put: Put, char: str, python: bool) -> Read[None]:
    """A key. In Python one without quotes is a number or the like, and becomes the text that means it."""
    if opens_string(lx, char):
        yield from read_string(lx, put, python=python)
    elif python:
        yield from read_atom(lx, lambda atom: put(quote(atom)), python=True)
    else:
        put(quote((yield from read_bare_key(lx))))


def read_bare_key(lx: Lexer) -> Read[str]:
    """A key without quotes, as JavaScript has them."""
    while True:
        found = _WORD.match(lx.buf, lx.pos)
        if found is None or len(found.group()) > MAX_WORD:
            raise NoCall
        if found.end() < len(lx.buf):
            break
        if lx.at_end():
            raise NoCall
        yield
    lx.pos = found.end()
    return found.group()


def read_colon(lx: Lexer, char: str, put: Put) -> None:
    """The colon behind a key, which may be missing in front of a value where a call is marked off."""
    if char == ":" or (lx.ends is not None and char and char in COLONS):
        lx.pos += 1
        put(":")
    elif lx.ends is not None and char and char in _BEGINS_VALUE:
        put(": ")
    else:
        raise NoCall


def _open(frame: _Frame, char: str) -> None:
    frame.closers.append({"{": "}}", "[": "]]", "(": ")]"}[char])
    frame.need = "key" if char == "{" else "value"
    frame.fresh = True


def _flush_comma(frame: _Frame, put: Put) -> None:
    if frame.comma:
        put(frame.comma)
        frame.comma = ""


def _after_value(lx: Lexer, frame: _Frame, char: str, put: Put) -> None:
    in_object = frame.closers[-1] == "}}"
    comma = char == "," or (lx.ends is not None and char in _COMMAS)
    if comma or (char == '"' if in_object else char in '"{['):
        lx.pos += comma
        frame.comma = "," if comma else ", "
        frame.need = "key" if in_object else "value"
    else:
        _close(lx, frame, char, put)


def _close(lx: Lexer, frame: _Frame, char: str, put: Put) -> None:
    """A closing bracket: allowed after a value, after a trailing comma, and in an empty container."""
    allowed = frame.need == "comma" or frame.fresh or frame.comma
    if not allowed or not frame.closers:
        raise NoCall
    if frame.closers[-1][0] != char and not _mend(lx, frame, char, put):
        return
    frame.comma = ""
    lx.pos += 1
    put(frame.closers.pop()[1])
    frame.need = "comma"


def _mend(lx: Lexer, frame: _Frame, char: str, put: Put) -> bool:
    """A bracket that does not fit: those inside of the one that it closes are missing, or it is one too many, or ends
    what the value stands in. Returns whether it closes the innermost container now."""
    if lx.ends is None:
        raise NoCall
    if not any(closer[0] == char for closer in frame.closers):
        if frame.python:
            _close_all(frame, put)
        else:
            lx.pos += 1
        return False
    while frame.closers[-1][0] != char:
        put(frame.closers.pop()[1])
    return True


def _close_all(frame: _Frame, put: Put) -> None:
    while frame.closers:
        put(frame.closers.pop()[1])
    frame.comma, frame.need = "", "comma"


def _begin_value(lx: Lexer, frame: _Frame, char: str, put: Put, commit: Callable[[], None] | None) -> Read[None]:
    string = opens_string(lx, char)
    if string and lx.ends is not None and frame.comma and frame.closers[-2:] == ["}}", "]]"] and not frame.python:
        yield from _read_element(lx, frame, put)
        return
    _flush_comma(frame, put)
    begun = commit if commit is not None and frame.closers else _nothing
    inside = frame.closers[-1][0] if frame.closers else ""
    if string or char in "{[(":
        begun()
    if char in "{[(":
        if len(frame.closers) >= MAX_DEPTH:
            raise NoCall
        lx.pos += 1
        if char == "{" and frame.python:
            yield from _open_braces(lx, frame, put)
            return
        _open(frame, char)
        put("[" if char == "(" else char)
        return
    if frame.python and (yield from read_python_string(lx, put, inside)):
        begun()
    elif string:
        yield from read_string(lx, put, inner=True, inside=inside)
    else:
        yield from read_atom(lx, put, python=frame.python)
        begun()
    frame.need = "comma"


def _read_element(lx: Lexer, frame: _Frame, put: Put) -> Read[None]:
    """A string in a list in an object: a key of that, where a colon follows, since the list's bracket is missing."""
    text: list[str] = []
    space: list[str] = []
    yield from read_string(lx, text.append, inner=True, inside="]")
    frame.need = "comma"
    if (yield from skip_space(lx, space.append)) == ":":
        put(frame.closers.pop()[1])
        frame.need = "colon"
    _flush_comma(frame, put)
    put("".join(text) + "".join(space).translate(_JSON_SPACE))


def _open_braces(lx: Lexer, frame: _Frame, put: Put) -> Read[None]:
    """Python's braces: a dict, or a set if what follows its first element is no colon."""
    _open(frame, "{")
    space: list[str] = []
    first: list[str] = []
    char = yield from skip_space(lx, space.append)
    found = yield from read_python_string(lx, first.append, "}")
    atom = not found and bool(char) and char not in "}{[("
    if atom:
        yield from read_atom(lx, first.append, python=True)
        found = True
    a_set = found and (yield from skip_space(lx)) in (",", "}")
    put("[" if a_set else "{")
    if atom and not a_set:
        first = [quote(first[0])]
    for piece in ("".join(space).translate(_JSON_SPACE), *first):
        put(piece)
    if a_set:
        frame.closers[-1] = "}]"
    if found:
        frame.fresh = False
        frame.need = "comma" if a_set else "colon"


def _nothing() -> None:
    return None


def read_object(lx: Lexer, put: Put, commit: Callable[[], None] | None = None) -> Read[None]:
    """A JSON object; ``{{ ... }}`` is read as ``{ ... }``. Stands on the opening brace."""
    held: list[str] = []
    lx.pos += 1
    more = 0
    while (yield from skip_space(lx, held.append)) == "{" and more < _MAX_DOUBLED:
        more += 1
        lx.pos += 1
    put("{" if more else "{" + "".join(held).translate(_JSON_SPACE))
    yield from read_value(lx, put, commit, inside=True)
    while more and (yield from skip_space(lx)) == "}":
        more -= 1
        lx.pos += 1
