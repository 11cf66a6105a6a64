"""Where the strings of a JSON text are, as it arrives: marks inside of them are data."""

from __future__ import annotations

import re

from toolcall.lexer import Lexer, Read

_QUOTES = re.compile(r'\\(?:.|\Z)|"', re.DOTALL)
_TEXT = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_REST = re.compile(_TEXT.pattern + r'"[ \t\r\n]*+', re.DOTALL)
_STRUCTURE = ",:}]"
LOOK_AHEAD = 4096
"""How far away the end of a string may be that holds a mark."""


class JsonText:
    """Follows a text that is JSON if it begins with a bracket."""

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._inside = False
        self._escape = ""
        self._plain: bool | None = None
        self._scanned = self._known_to = 0
        self._closes = False
        """Whether the string that goes on up to ``_known_to`` is followed by more JSON."""

    def add(self, text: str) -> None:
        self._pending.append(text)

    def _scan(self) -> None:
        text = self._escape + "".join(self._pending)
        self._pending.clear()
        if self._plain is None and text.strip():
            self._plain = text.lstrip()[0] not in "{["
        self._escape = ""
        for found in _QUOTES.finditer(text):
            if found.group() == '"':
                self._inside = not self._inside
            elif found.group() == "\\":
                self._escape = "\\"

    def holds(self, lx: Lexer, size: int) -> Read[bool]:
        """Whether the next ``size`` characters stand inside a string: one is open, and it closes near, with more of
        the JSON behind it. Where the closing quote was forgotten that is not so."""
        self._scan()
        if self._plain or not self._inside:
            return False
        start = lx.consumed
        while start >= self._known_to:
            at = lx.pos + max(size, self._scanned - start)
            found = _REST.match(lx.buf, at, lx.pos + LOOK_AHEAD)
            if found is not None and found.end() < min(len(lx.buf), lx.pos + LOOK_AHEAD):
                self._known_to = start + found.end() - lx.pos
                self._closes = lx.buf[found.end()] in _STRUCTURE
                break
            head = _TEXT.match(lx.buf, at)
            assert head is not None
            self._scanned = start + head.end() - lx.pos
            if len(lx.buf) - lx.pos >= LOOK_AHEAD or lx.at_end():
                return False
            yield
        return self._closes
