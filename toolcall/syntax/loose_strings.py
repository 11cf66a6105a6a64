"""A string between two of Gemma's marks, of which models forget the second one.

A mark inside the string is a quote of it, and what ends the block is a part of it: unless no mark that may end the
string follows in front of the next block or the end of the text. Then the string has ended before that, in front of
the brackets around it, or in front of another parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from toolcall.lexer import Lexer, Markers, NoCall, Put, Read, until

_MAX_TAIL = 256
_MAX_RETURNS = 16
"""How often an answer is read again behind a string that had no end."""
_KEY = r"[\w$./@-]{1,64}+"
_TAIL = re.compile(rf"(?:,\s*+(?:{_KEY}\s*+)?|[}}\])\s]*)\Z")
"""What may be the end of the call and not of the string, or the beginning of another parameter."""
_PARAMETER = {close: re.compile(rf",\s*+({_KEY})\s*+{sign}") for close, sign in (("}", ":"), (")", "="))}
"""By the bracket that closes the arguments."""


@dataclass(slots=True)
class QuotedString:
    """marks: the words, which are those around strings, and those that begin and end a block. around: the brackets that
    the string stands in, the innermost first, as they are closed. others: parameters that may follow. goes_on: whether
    the call goes on here.
    """

    marks: Markers
    words: tuple[str, str, str]
    around: str
    others: Collection[str]
    goes_on: Callable[[Lexer], Read[bool]]
    _take: Put = field(init=False)
    _count: int = field(init=False, default=0)
    """Characters of the string so far, marks and all."""
    _tail: str = field(init=False, default="")
    _held: list[str] | None = field(init=False, default=None)
    """Text behind the place where the string may have ended."""
    _parameter: int | None = field(init=False, default=None)
    _end: int | None = field(init=False, default=None)
    """Where another parameter, and where the end of the block, may stand in what is read as the string."""
    _inner: int = field(init=False, default=0)
    """Blocks that the string holds."""

    def read(self, lx: Lexer, take: Put) -> Read[None]:
        """Takes the text of the string, from behind its opening mark to behind its closing one."""
        self._take = take
        start = lx.consumed
        quote, opener, closer = self.words
        while True:
            word = yield from until(lx, self.marks, self._add, keep=True)
            if word is None or (word == opener and self._end is not None):
                self._go_back(lx, start, at_end=word is None)
                return
            lx.pos += len(word)
            if word == quote:
                if (yield from self.goes_on(lx)):
                    self._put(self._tail + "".join(self._held or ()))
                    return
                self._add('"' if '"' in word else word, len(word))
                continue
            self._inner += word == opener
            if word == closer and self._inner:
                self._inner -= 1
            elif word == closer and self._end is None:
                self._end = self._count
                self._held = self._held or []
            self._add(word)

    def _add(self, text: str, size: int = 0) -> None:
        before = self._count
        self._count += size or len(text)
        if self._held is not None:
            self._held.append(text)
            return
        text = self._tail + text
        found = self._find_parameter(text) if self.others else None
        if found is not None:
            self._parameter = before - len(self._tail) + found.start()
            self._put(text[: found.start()])
            self._held, self._tail = [text[found.start() :]], ""
            return
        tail = _TAIL.search(text, max(0, len(text) - _MAX_TAIL))
        assert tail is not None
        self._put(text[: tail.start()])
        self._tail = text[tail.start() :]

    def _find_parameter(self, text: str) -> re.Match[str] | None:
        found = _PARAMETER[self.around].finditer(text)
        return next((match for match in found if match.group(1) in self.others), None)

    def _put(self, text: str) -> None:
        if text:
            self._take(text)

    def _go_back(self, lx: Lexer, start: int, *, at_end: bool) -> None:
        """The string had no closing mark: goes to where it has ended."""
        if self._end is None or (at_end and lx.cut) or lx.returns >= _MAX_RETURNS:
            raise NoCall
        if self._parameter is None:
            self._put(self._tail[: self._bracket()])
        lx.go_back(start + (self._end if self._parameter is None else self._parameter))

    def _bracket(self) -> int:
        """Where in the tail the brackets begin that are not the string's own."""
        places = [at for at, char in enumerate(self._tail) if char in "}])"]
        for size in range(min(len(places), len(self.around)), 0, -1):
            if "".join(self._tail[at] for at in places[-size:]) == self.around[-size:]:
                return places[-size]
        return len(self._tail)
