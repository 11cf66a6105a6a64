"""One value of a call that is written as tags: from behind its opening tag to behind its closing one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolcall.json_text import escape
from toolcall.lexer import (
    MAX_HEADER,
    SPACE,
    Lexer,
    Markers,
    NoCall,
    Put,
    Read,
    at_marker,
    at_words,
    skip_space,
    until,
)
from toolcall.schema import ParamType, SchemaNode, Tool, to_json
from toolcall.syntax.attributes import first_attribute, may_be_attributes, may_be_label
from toolcall.syntax.inner_calls import InnerCalls, begins_call
from toolcall.syntax.json_texts import JsonText
from toolcall.syntax.nested import nested_json
from toolcall.syntax.tags import CDATA_OPEN, NEWLINES, Tags
from toolcall.syntax.xml_text import CDATA_CLOSE, IN_CDATA, begins_cdata, behind_cdata, read_cdata, read_entity

_LAYOUT = Markers(NEWLINES)
_XML = ("&", CDATA_OPEN, CDATA_CLOSE)
_TAIL = re.compile(r"[^<>\n]*+>?")
_MAX_TAIL = 64
"""What may stand in a misspelt tag behind its name."""


@dataclass(slots=True)
class TaggedValue:
    """seen: the keys of the call so far, this one last. tag: what closes it where tags close by name. other: its
    opening tag is spelt otherwise."""

    tags: Tags
    kind: ParamType
    tool: Tool
    seen: list[str]
    schema: SchemaNode
    tag: str
    other: bool = False
    _put: Put = field(init=False)
    _held: list[str] = field(init=False, default_factory=list)
    """Text behind a closing tag that may be the value's own: noise if the call goes on, else a part of the value."""
    _json_text: JsonText | None = field(init=False, default=None)
    """For a value that may be an object or a list, and no string."""
    _led: str = field(init=False, default="")
    """The layout newline in front of the value."""
    _opened: bool = field(init=False, default=False)
    """The value holds a tag that its own closing tag would close."""
    _quoted: bool = field(init=False, default=False)
    """The value holds tags of calls, so that a whole call inside it may end."""
    _inner: InnerCalls = field(init=False)
    _kept: tuple[Put, list[str]] | None = field(init=False, default=None)
    """Where text goes, and that which does not go there yet."""

    def __post_init__(self) -> None:
        self._inner = InnerCalls(self.tags)

    def read(self, lx: Lexer, put: Put) -> Read[None]:
        """Puts the value as JSON."""
        tags = self.tags
        closes, ends = yield from self._begin(lx)
        streams = self.kind.streams
        raw: list[str] = []
        if streams:
            put('"')
        self._put = (lambda text: put(escape(text))) if streams else raw.append
        if not streams and not tags.nested and "string" not in self.kind.kinds:
            self._json_text = JsonText()
        start, first = lx.consumed, True
        while True:
            word = yield from until(lx, ends[self._led], self._sink(), keep=True)
            if word is None and not self._ended_before(lx):
                raise NoCall
            if word is None:
                break
            if self._json_text is not None and (yield from self._json_text.holds(lx, len(word))):
                self._take_mark(lx, word)
            elif word in _XML:
                if (yield from self._read_xml(lx, word)):
                    break
            elif (yield from self._inner.takes(lx, word)):
                self._keep()
                self._take_mark(lx, word)
            elif word.endswith(closes):
                empty = first and lx.consumed == start and self.kind.streams
                twice = not empty and word.startswith(self._led) and tags.is_own(word)
                if (yield from self._closes_here(lx, len(word), twice=twice, own=tags.is_own(word))):
                    lx.pos += len(word)
                    self._flush()
                    break
                self._hold(word)
                self._take_mark(lx, word)
            elif tags.value_stem and word.endswith(tags.value_stem):
                size = yield from misspelt(lx, len(word))
                if size and (yield from self._closes_here(lx, size, twice=False)):
                    if lx.eof and lx.cut and not lx.buf[lx.pos + size :].lstrip(SPACE).startswith(tags.followers):
                        raise NoCall  # what is missing may be its proper end
                    lx.pos += size
                    self._flush()
                    break
                self._take_mark(lx, word)
            elif word not in (tags.reopens, tags.inner_open, *tags.block_openers) and (
                yield from self._ends_here(lx, word, empty=first and lx.consumed == start)
            ):
                self._ended_before(lx)
                break
            else:
                first = False
                self._opened = self._opened or word == tags.reopens
                self._quoted = self._quoted or word.endswith((tags.param_open, tags.call_close))
                self._take_mark(lx, lx.buf[lx.pos])
        self._release()
        put('"' if streams else self._json("".join(raw)))
        if tags.reopens and not self._opened:
            yield from skip_space(lx)
            while (yield from at_marker(lx, tags.value_closing)) is not None:
                yield from skip_space(lx)

    def _begin(self, lx: Lexer) -> Read[tuple[tuple[str, ...], Mapping[str, Markers]]]:
        """Consumes what is layout at the beginning. Returns what closes the value, and what to look for."""
        tags = self.tags
        closes, ends = tags.closes_value, tags.ends
        if tags.close_by_key:
            closes = (tags.value_close + self.tag + tags.key_end,)
            ends = tags.ends_with(closes)
        if tags.xml and (yield from begins_cdata(lx)):
            ends = {"": IN_CDATA}
        elif tags.trim_newlines:
            self._led = (yield from at_marker(lx, _LAYOUT)) or ""
        return closes, ends

    def _read_xml(self, lx: Lexer, word: str) -> Read[bool]:
        """An entity, a section of CDATA behind other text, or the end of one that the value began with. Returns
        whether the value ends."""
        if word == CDATA_CLOSE:
            size, ended = yield from behind_cdata(lx, self.tags)
            if not size:
                self._take_mark(lx, word)
            lx.pos += size
            return ended
        if word == "&":
            yield from read_entity(lx, self._take)
        else:
            yield from read_cdata(lx, self._take)
        return False

    def _take_mark(self, lx: Lexer, word: str) -> None:
        self._take(word)
        lx.pos += len(word)

    def _sink(self) -> Put:
        if self._json_text is not None:
            return self._take
        return self._held.append if self._held else self._put

    def _take(self, text: str) -> None:
        if self._json_text is not None:
            self._json_text.add(text)
        if self._held:
            self._held.append(text)
        else:
            self._put(text)

    def _keep(self) -> None:
        """Behind the end of a value inside the value nothing goes out until it is known for that."""
        if self._inner.close is not None and self._kept is None:
            kept: list[str] = []
            self._kept, self._put = (self._put, kept), kept.append

    def _release(self) -> None:
        if self._kept is not None:
            put, kept = self._kept
            put("".join(kept))

    def _ended_before(self, lx: Lexer) -> bool:
        """The value has no end behind the calls that it seemed to hold: goes back to the first end of one of their
        values, which was its own. Returns whether there was one."""
        if self._inner.close is None or lx.cut:
            return False
        self._held, self._kept = [], None
        where, size = self._inner.close
        lx.go_back(where)
        lx.pos += size
        return True

    def _hold(self, close: str) -> None:
        """Behind this closing tag the text may be noise between two parameters, unless it is that of a key."""
        if self.tags.value_open and close.endswith(self.tags.key_end):
            return
        self._flush()
        if self.tags.loose_close and not self._opened:
            self._held = [""]

    def _flush(self) -> None:
        held, self._held = self._held, []
        if len(held) > 1:
            self._put("".join(held))

    def _json(self, text: str) -> str:
        nested = self.tags.nested
        return nested_json(text, nested, self.schema) if nested else to_json(text, self.kind)

    def _bare_keys(self) -> tuple[str, ...]:
        """Keys whose opening tag is missing."""
        tags = self.tags
        return tuple(key + tags.key_end for key in self.tool.keys) if tags.value_open else ()

    def _closes_here(self, lx: Lexer, size: int, *, twice: bool, own: bool = True) -> Read[bool]:
        """Whether this close ends the value, and is not a part of it: only if the call goes on, or ends, behind it.
        twice: it may come twice; a value that would be nothing but a close, or is wrapped in newlines and this close
        is not, ends at the second."""
        tags = self.tags
        again = tags.value_close if twice and not self._opened and tags.reopens else ""
        strange = tags.prefixed and not (own or self.other)
        passed = (again, *(tags.call_closes if strange else ()), *tags.around)
        followers = (*(tags.own_followers if strange else tags.followers), *self._bare_keys())
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            after = rest.lstrip(SPACE)
            while word := next((word for word in passed if word and after.startswith(word)), ""):
                after = after[len(word) :].lstrip(SPACE)
            if any(after.startswith(w) for w in followers):
                return not self._quoted or not (yield from self._goes_on(lx, size))
            possible = any(w.startswith(after) for w in (*followers, *passed))
            if not possible or len(rest) == MAX_HEADER or lx.at_end():
                return possible and len(rest) < MAX_HEADER
            yield

    def _ends_here(self, lx: Lexer, word: str, *, empty: bool) -> Read[bool]:
        """Whether a value whose close is missing ends at this marker: before a parameter that the tool has and the
        call has not had yet, or at the end of a call that the block's closer, or the end of the text, follows."""
        tags, size = self.tags, len(word)
        if word.endswith(tags.param_open) and (empty or not word.startswith(self._led)):
            return False
        if word.endswith(tags.block_closers):
            return not self._inner.in_block and (yield from self._block_ends(lx, word))
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            if word.endswith(tags.param_open):
                header, found, after = rest.partition(tags.key_end)
                key = first_attribute(header, self.tool.has)[0]
                if found and not (tags.value_open and tags.value_open.startswith(after.lstrip(SPACE))):
                    known = self.tool.has(key) and key not in self.seen
                    return known and after.lstrip(SPACE).startswith(tags.value_open)
                possible = self.tool.may_have(key) or may_be_label(header)
                possible = possible or (tags.has_attributes and may_be_attributes(header))
                if lx.at_end() or len(rest) == MAX_HEADER or not possible:
                    return False
            else:
                after = rest.lstrip()
                if any(after.startswith(w) for w in tags.next_open):
                    return not (yield from self._goes_on(lx, size))
                if lx.at_end() or len(rest) == MAX_HEADER:
                    return lx.eof and not after
                if after and not any(w.startswith(after) for w in tags.next_open):
                    return False
            yield

    def _block_ends(self, lx: Lexer, word: str) -> Read[bool]:
        """Whether the block ends with this closer, so that those of value and call are missing: nothing follows, or
        another block with a call does."""
        opener = word.lstrip("\r\n").replace("/", "", 1)
        words = (opener, self.tags.call_open)
        while True:
            rest = lx.buf[lx.pos + len(word) : lx.pos + len(word) + MAX_HEADER]
            after, seen = rest.lstrip(SPACE), 0
            while seen < len(words) and after.startswith(words[seen]):
                after, seen = after[len(words[seen]) :].lstrip(SPACE), seen + 1
            if seen == len(words):
                return (yield from begins_call(lx, self.tags, len(word) + len(rest) - len(after)))
            if not words[seen].startswith(after) or len(rest) == MAX_HEADER or lx.at_end():
                return lx.eof and not lx.cut and not after and not seen
            yield

    def _goes_on(self, lx: Lexer, size: int) -> Read[bool]:
        """Whether a value goes on behind the end of a call inside it: all closers are followed by one of a value."""
        tags = self.tags
        while True:
            rest = lx.buf[lx.pos + size : lx.pos + size + MAX_HEADER]
            after, shorter = rest.lstrip(SPACE), True
            while shorter:
                shorter = False
                for word in tags.closing:
                    if after.startswith(word):
                        after, shorter = after[len(word) :].lstrip(SPACE), True
            if after.startswith(tags.value_close):
                return True
            words = (tags.value_close, *tags.closing)
            if len(rest) == MAX_HEADER or not any(w.startswith(after) for w in words) or lx.at_end():
                return False
            yield


def misspelt(lx: Lexer, size: int) -> Read[int]:
    """How long the tag is that stands here, of which so many characters are known; 0 where it has no end."""
    while True:
        rest = lx.buf[lx.pos + size : lx.pos + size + _MAX_TAIL]
        found = _TAIL.match(rest)
        assert found is not None
        if found.end() < len(rest) or found.group().endswith(">"):
            return size + found.end()
        if len(rest) == _MAX_TAIL or lx.at_end():
            return 0 if len(rest) == _MAX_TAIL else size + len(rest)
        yield


def may_end(lx: Lexer, tags: Tags, *, seen: bool, tool: Tool) -> Read[bool]:
    """Whether a call whose close is missing ends here."""
    if not seen and tool.keys:
        return False
    if lx.eof and not lx.cut and any(w.startswith(lx.buf[lx.pos :]) for w in (*tags.closing, *tags.next_open)):
        return True
    return (yield from at_words(lx, tags.next_open))
