"""Reading model text that arrives in pieces of any size.

A reader is a generator that yields when it needs more text and returns what it read. The text read so far is
``buf[pos:]``; a reader consumes it by moving ``pos`` and never looks back further than its mark, so a feed costs
O(delta). All choices depend on the text alone, never on where the pieces were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Read = Generator[None, None, T]
Put = Callable[[str], Any]
Run = Callable[[str], Any]

SPACE = " \t\r\n\v\f\x1c\x1d\x1e\x1f\x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200C)))
SPACE += "\u2028\u2029\u202f\u205f\u3000\ufeff"
"""White space around what calls are made of: models put there whatever their language has."""
STRIDE = 4_096
"""How far ahead a reader looks for markers at a time."""
QUIET_STRIDE = 64
"""The same for a reader whose put may raise."""
MAX_HEADER = 512
"""A name or key longer than this is none."""
_SPACE_RUN = re.compile(f"[{SPACE}]+")


class NoCall(Exception):
    """What is being read is no tool call of a declared tool: its text stays text.

    release: so many characters behind the mark need not be looked at again. idle: nothing but the opener, white
    space and a closer was looked at. moved: the mark stands behind the opener, whose text is out.
    """

    def __init__(self, release: int = 0, *, idle: bool = False, moved: bool = False) -> None:
        super().__init__(release)
        self.release = release
        self.idle = idle
        self.moved = moved


class Lexer:
    """The text that has arrived and is not consumed, and, while a block is open, all of its text.

    run, put: set by a reader that waits inside a long run of plain characters. A piece that ``run`` accepts whole
    goes straight to ``put`` and the reader is not woken. prefixes: set by a reader that waits for the rest of a
    marker; while ``buf + piece`` is in it the reader is not woken.
    """

    __slots__ = (
        "_marked_from",
        "_raw",
        "buf",
        "cut",
        "ends",
        "eof",
        "pos",
        "prefixes",
        "put",
        "returns",
        "run",
        "starved",
        "total",
    )

    def __init__(self) -> None:
        self.buf = ""
        self.pos = 0
        self.eof = False
        self.cut = False
        """The end of input is no end of the turn: the engine hit its token limit."""
        self.ends: Markers | None = None
        """What may follow a call inside marks that say that it is one: what is damaged there is put right more boldly.
        None where nothing but the text itself says that it is a call. Without words the end of input is meant."""
        self.starved = False
        """Since the mark a reader wanted more text at the end of input."""
        self.total = 0
        self.returns = 0
        """How often a reader has gone back to a place that it had taken for another."""
        self.run: Run | None = None
        self.put: Put | None = None
        self.prefixes: frozenset[str] | None = None
        self._raw: list[str] | None = None
        """Text behind the mark that has left the buffer; it goes on at ``buf[_marked_from:]``."""
        self._marked_from = 0

    def quick(self, text: str) -> bool:
        """Takes a piece without waking the reader, where the reader has said that this is safe."""
        run = self.run
        if run is not None and run(text):
            self.put(text)  # type: ignore[misc]
            self.total += len(text)
            if self._raw is not None:
                if self.buf:
                    self._keep("")
                self._raw.append(text)
            return True
        if self.prefixes is not None and (held := self.buf[self.pos :] + text) in self.prefixes:
            self.total += len(text)
            self._keep(held)
            return True
        return False

    def append(self, text: str) -> None:
        self.run = None
        self.prefixes = None
        self.total += len(text)
        self._keep(self.buf[self.pos :] + text)

    def _keep(self, rest: str) -> None:
        """Makes ``rest`` the buffer; what is consumed of the old one stays behind the mark."""
        if self._raw is not None:
            self._raw.append(self.buf[self._marked_from : self.pos])
            self._marked_from = 0
        self.buf = rest
        self.pos = 0

    def mark(self) -> None:
        """Remember the text from here on, for ``rewind``. There is one mark at a time."""
        self._raw = []
        self._marked_from = self.pos
        self.starved = False

    def unmark(self) -> None:
        self._raw = None

    def at_end(self) -> bool:
        """Whether no more text will come; readers ask this when they want more."""
        self.starved = self.starved or self.eof
        return self.eof

    @property
    def since_mark(self) -> int:
        """Characters consumed since the mark."""
        return sum(map(len, self._raw or ())) + self.pos - self._marked_from

    def rewind(self) -> int:
        """Go back to the mark and forget it. Returns how many characters had been read since."""
        if self._raw is None:
            return 0
        if self._raw:
            head = "".join(self._raw)
            read = len(head) + self.pos
            self.buf = head + self.buf
            self.pos = 0
        else:
            read = self.pos - self._marked_from
            self.pos = self._marked_from
        self._raw = None
        return read

    def go_back(self, consumed: int) -> None:
        """Go back to a place behind the mark, which stays."""
        whole = "".join(self._raw or ()) + self.buf[self._marked_from :]
        at = len(whole) - (self.total - consumed)
        self._raw, self._marked_from = [whole[:at]], 0
        self.buf, self.pos = whole[at:], 0
        self.returns += 1

    @property
    def consumed(self) -> int:
        """Characters consumed since the beginning."""
        return self.total - (len(self.buf) - self.pos)


class Markers:
    """A set of literal strings to be found in text that arrives in pieces; the earliest, then the longest, wins."""

    __slots__ = ("first", "longest", "prefixes", "run", "search", "words")

    def __init__(self, words: Sequence[str], plain_except: str = "") -> None:
        self.words = tuple(sorted({w for w in words if w}, key=lambda w: (-len(w), w)))
        self.prefixes = frozenset(w[:i] for w in self.words for i in range(1, len(w)))
        self.longest = max(map(len, self.words), default=0)
        self.first = frozenset(w[0] for w in self.words)
        self.search = re.compile("|".join(map(re.escape, self.words)) or r"(?!)").search
        stop = "".join(sorted(self.first | set(plain_except)))
        self.run: Run = re.compile(f"[^{re.escape(stop)}]*" if stop else r"[\s\S]*").fullmatch

    def find(self, text: str, pos: int, end: int) -> tuple[int, str | None]:
        """Looks at text[pos:end]; returns (where, marker). Without a whole marker: where a possible beginning of one
        stands, or the end, and None.

        A match that another marker might still replace, one that begins earlier or is longer and of which the text
        holds only a part, is reported as such a beginning; the caller decides at the end of input.
        """
        found = self.search(text, pos, end)
        if found is not None:
            where, word = found.start(), found.group()
            if end - where < self.longest and (tail := self._tail(text, pos, end)) <= where:
                return tail, None
            return where, word
        return self._tail(text, pos, end), None

    def _tail(self, text: str, pos: int, end: int) -> int:
        first, prefixes = self.first, self.prefixes
        for i in range(max(pos, end - self.longest + 1), end):
            if text[i] in first and text[i:end] in prefixes:
                return i
        return end

    def at(self, text: str, pos: int) -> str | None:
        for word in self.words:
            if text.startswith(word, pos):
                return word
        return None


def ignore(text: str) -> None:
    """A put for text that is passed over."""


def begins_name(char: str) -> bool:
    """Whether a name may begin like this; "" is the end of input."""
    return char.isalnum() or char == "_"


def peek(lx: Lexer) -> Read[str]:
    """The next character, "" at the end of input."""
    while lx.pos >= len(lx.buf):
        if lx.at_end():
            return ""
        yield
    return lx.buf[lx.pos]


def skip_space(lx: Lexer, put: Put | None = None) -> Read[str]:
    """Consumes white space; returns the character after it, "" at the end of input."""
    while True:
        found = _SPACE_RUN.match(lx.buf, lx.pos)
        if found is not None:
            if put is not None:
                put(found.group())
            lx.pos = found.end()
        if lx.pos < len(lx.buf):
            return lx.buf[lx.pos]
        if lx.at_end():
            return ""
        yield


def at_marker(lx: Lexer, markers: Markers) -> Read[str | None]:
    """The marker that the text continues with, consumed; None, and nothing consumed, if it does not."""
    while True:
        head = lx.buf[lx.pos : lx.pos + markers.longest]
        if (head in markers.prefixes or not head) and not lx.at_end():
            lx.prefixes = markers.prefixes if head else None
            yield
            continue
        word = markers.at(lx.buf, lx.pos)
        if word is not None:
            lx.pos += len(word)
        return word


def ends_here(lx: Lexer) -> Read[bool]:
    """Whether what may follow a call stands here; consumes nothing. The end of input is none."""
    if lx.ends is None:
        return False
    word = yield from at_marker(lx, lx.ends)
    lx.pos -= len(word or "")
    return word is not None


def at_words(lx: Lexer, words: tuple[str, ...]) -> Read[bool]:
    """Whether one of the words stands here; consumes nothing."""
    while True:
        if any(lx.buf.startswith(w, lx.pos) for w in words):
            return True
        rest = lx.buf[lx.pos :]
        if lx.at_end() or not any(w.startswith(rest) for w in words):
            return False
        yield


Skip = Callable[[str, int, str], bool]
"""(text, where, word) -> whether this marker is certainly text."""


def until(
    lx: Lexer,
    markers: Markers,
    put: Put,
    *,
    limit: int = 0,
    quick: bool = True,
    skip: Skip | None = None,
    keep: bool = False,
) -> Read[str | None]:
    """Puts the text before the next marker and stops in front of it; None at the end of input.

    limit: raise NoCall after so many characters without a marker; 0 = none. quick: put may be called for text that
    the lexer has not seen, so it must not raise. skip: asked about each marker. keep: at the end of input the
    beginning of a marker is not put, for text that must not end there. Looks no further ahead than it must,
    so that a reader that gives up early costs little.
    """
    left = limit
    stride = min(limit or STRIDE, STRIDE) if quick else QUIET_STRIDE
    scan = lx.pos
    while True:
        end = min(len(lx.buf), scan + stride + markers.longest)
        whole = end == len(lx.buf)
        where, word = markers.find(lx.buf, scan, end)
        if word is None and whole and lx.eof:
            tail = where
            where, word = _last_marker(lx, markers, scan)
            if word is None and keep:
                where = tail
        elif word is None and not whole:
            where = scan + stride
        if word is not None and skip is not None and skip(lx.buf, where, word):
            scan = where + len(word)
            continue
        if where > lx.pos:
            if limit and where - lx.pos > left:
                lx.pos += left
                raise NoCall
            left -= where - lx.pos
            put(lx.buf[lx.pos : where])
            lx.pos = where
        scan = where
        if word is not None:
            return word
        if not whole:
            continue
        if lx.at_end():
            return None
        if lx.pos < len(lx.buf):
            lx.prefixes = markers.prefixes
        elif quick and not limit:
            lx.run, lx.put = markers.run, put
        yield
        scan = lx.pos


def _last_marker(lx: Lexer, markers: Markers, scan: int) -> tuple[int, str | None]:
    found = markers.search(lx.buf, scan)
    if found is None:
        return len(lx.buf), None
    return found.start(), found.group()


def second(lx: Lexer) -> Read[str]:
    """The character after the next one and after white space, nothing consumed; "" if there is none near."""
    near = 256
    while True:
        rest = lx.buf[lx.pos + 1 : lx.pos + 1 + near].lstrip(SPACE)
        if rest:
            return rest[0]
        if len(lx.buf) - lx.pos > near or lx.at_end():
            return ""
        yield
