"""Values that are XML: sections of CDATA and entities."""

from __future__ import annotations

import re

from toolcall.json_text import ESCAPED
from toolcall.lexer import MAX_HEADER, SPACE, Lexer, Markers, NoCall, Put, Read, until
from toolcall.syntax.tags import CDATA_OPEN, Tags

CDATA_CLOSE = "]]>"
IN_CDATA = Markers((CDATA_CLOSE,), ESCAPED)
_ENTITY = re.compile(r"&(?:(lt|gt|amp|quot|apos)|#([0-9]{1,7})|#x([0-9a-fA-F]{1,6}));")
_MAY_BE_ENTITY = re.compile(r"&(?:#[0-9]{0,7}|#x[0-9a-fA-F]{0,6}|[a-z]{0,4})")
_NAMED = {"lt": "<", "gt": ">", "amp": "&", "quot": '"', "apos": "'"}


def begins_cdata(lx: Lexer) -> Read[bool]:
    """Whether the value is CDATA; consumes its opener and the white space in front of it."""
    while True:
        rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
        after = rest.lstrip(SPACE)
        if after.startswith(CDATA_OPEN):
            lx.pos += len(rest) - len(after) + len(CDATA_OPEN)
            return True
        if not CDATA_OPEN.startswith(after) or len(rest) == MAX_HEADER or lx.at_end():
            return False
        yield


def behind_cdata(lx: Lexer, tags: Tags) -> Read[tuple[int, bool]]:
    """At ``]]>``: how much of the text is layout, and whether the value ends with it. (0, False): the text of the
    section holds it, nothing that may stand behind a section follows."""
    while True:
        rest = lx.buf[lx.pos + len(CDATA_CLOSE) : lx.pos + MAX_HEADER]
        after = rest.lstrip(SPACE)
        size = len(CDATA_CLOSE) + len(rest) - len(after)
        for word in tags.closes:
            if after.startswith(word):
                return size + len(word), True
        if after.startswith(CDATA_OPEN):
            return size + len(CDATA_OPEN), False
        if after.startswith(tags.followers):
            return size, True
        words = (*tags.closes, *tags.followers, CDATA_OPEN)
        possible = any(word.startswith(after) for word in words) and len(rest) < MAX_HEADER - len(CDATA_CLOSE)
        if not possible or lx.at_end():
            return (size + len(after), True) if possible and not lx.cut else (0, False)
        yield


def read_cdata(lx: Lexer, put: Put) -> Read[None]:
    """A section, from its opener to behind its end."""
    lx.pos += len(CDATA_OPEN)
    if (yield from until(lx, IN_CDATA, put, keep=True)) is None:
        raise NoCall
    lx.pos += len(CDATA_CLOSE)


def read_entity(lx: Lexer, put: Put) -> Read[None]:
    """What an entity means; an ampersand that begins none is itself."""
    while True:
        found = _ENTITY.match(lx.buf, lx.pos)
        if found is not None or _MAY_BE_ENTITY.fullmatch(lx.buf, lx.pos) is None or lx.at_end():
            break
        yield
    text = _meaning(found) if found is not None else ""
    put(text or "&")
    lx.pos = found.end() if found is not None and text else lx.pos + 1


def _meaning(found: re.Match[str]) -> str:
    """The character that an entity or a reference means; empty where XML has no such character."""
    name, decimal, hexadecimal = found.groups()
    if name is not None:
        return _NAMED[name]
    code = int(decimal) if decimal else int(hexadecimal, 16)
    valid = code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or 0x10000 <= code < 0x110000
    return chr(code) if valid else ""
