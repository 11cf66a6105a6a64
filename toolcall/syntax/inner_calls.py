"""Whole calls that a value holds, as in a text about calls: their tags are data."""

from __future__ import annotations

import re

from toolcall.lexer import MAX_HEADER, SPACE, Lexer, Read
from toolcall.syntax.tags import Tags

_NAME = re.compile(r"""(?:(?:name|tool)\s*+=\s*+)?+["']?+[\w.:/$@-]{1,128}+["']?+(?:\s[^<\n]*+)?+""")
_KEY = re.compile(r"""(?:name\s*+=\s*+["']?|["']|(?!name\s*+=))[\w$@]""")
_PART_OF_KEY = re.compile(r"""n?|na|nam|name\s*+(?:=\s*+["']?)?|["']""")


_MAX_RETURNS = 3
"""How often an answer is read again behind what was no call inside a value."""


class InnerCalls:
    """Follows the calls inside one value, which may hold others in turn.

    Whether a closing tag is that of a value inside shows only behind it: if the value that holds it ends by a closing
    tag of its own, it is. Else the value held no more than the beginning of a call, and ``close`` was its end.
    """

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        self._open: list[bool] = []
        """For each call that is open, whether one of its values is."""
        self.in_block = False
        """The value holds the opener of a block, so that the closer may be its own."""
        self.close: tuple[int, int] | None = None
        """Where the first of these closing tags stands, and its length."""

    def takes(self, lx: Lexer, word: str) -> Read[bool]:
        """Whether the marker that stands here belongs to a call inside the value."""
        tags, plain = self._tags, word.lstrip("\r\n")
        self.in_block = self.in_block or plain in tags.block_openers
        if plain == tags.inner_open:
            begins = lx.returns < _MAX_RETURNS and (yield from begins_call(lx, tags, len(word)))
            self._open += [False] if begins else []
            return begins
        if not self._open or plain == tags.reopens:
            return False
        if plain == tags.param_open:
            self._open[-1] = True
        elif plain == tags.call_close:
            self._open.pop()
        elif plain not in tags.closes:
            return False
        elif self._open[-1]:
            self._open[-1] = False
            self.close = self.close or (lx.consumed, len(word))
        else:  # the call has not ended, but the value that holds it has
            self._open.clear()
            return False
        return True


def begins_call(lx: Lexer, tags: Tags, size: int) -> Read[bool]:
    """Whether a call really begins at the opener of so many characters that stands here: a name, and a parameter or the
    end behind it. Elsewhere its opener is only spoken of."""
    while True:
        rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER].lstrip(SPACE)
        found = _begins(rest, tags)
        if found is not None:
            return found
        if lx.at_end() or len(lx.buf) - lx.pos >= size + MAX_HEADER:
            return False
        yield


def _begins(text: str, tags: Tags) -> bool | None:
    """None where more text may tell."""
    where, word = tags.inner_ends.find(text, 0, len(text))
    name = text[:where]
    if "\n" in name:
        return False
    if word is None:
        return None if where <= MAX_HEADER // 2 else False
    if not name or _NAME.fullmatch(name) is None:
        return not name and word == tags.call_close
    after = text[where:] if word != tags.name_end else text[where + len(word) :].lstrip(SPACE)
    if after.startswith(tags.call_close):
        return True
    if after.startswith(tags.param_open):
        key = after[len(tags.param_open) :]
        return None if _PART_OF_KEY.fullmatch(key) else _KEY.match(key) is not None
    return None if any(mark.startswith(after) for mark in (tags.param_open, tags.call_close)) else False
