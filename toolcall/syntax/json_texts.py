"""Where the strings of a JSON text are, as it arrives: marks inside of them are data."""

from __future__ import annotations

import re

from toolcall.lexer import MAX_HEADER, Lexer, Read

_QUOTES = re.compile(r'\\(?:.|\Z)|"', re.DOTALL)
_REST = re.compile(r'(?:[^"\\]++|\\.)*+"[ \t\r\n]*+', re.DOTALL)
_STRUCTURE = ",:}]"


class JsonText:
    """Follows a text that is JSON if it begins with a bracket."""

    def __init__(self) -> None:
        self._pending: list[str] = []
        self._inside = False
        self._escape = ""
        self._plain: bool | None = None

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
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            found = _REST.match(rest)
            if found is not None and found.end() < len(rest):
                return rest[found.end()] in _STRUCTURE
            if len(rest) == MAX_HEADER or lx.at_end():
                return False
            yield
