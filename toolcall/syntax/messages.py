"""Answers made of several messages with headers (harmony): reasoning, text and calls are messages of their own.

``<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>``
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from toolcall.lexer import MAX_HEADER, Lexer, Markers, NoCall, Put, Read, at_marker, at_words, skip_space, until
from toolcall.output import Channel, Output
from toolcall.syntax.block import Body, Options
from toolcall.syntax.json_calls import read_arguments

_RECIPIENT = re.compile(r"to=\s*((?:functions\.\s+)?+[^\s<]+)")
_BARE_RECIPIENT = re.compile(r"\bfunctions\.[^\s<]+")
_FREE = re.compile(r"\s*+(?:(?:assistant|analysis|commentary|final)\s*+)?+")
"""What may stand in front of a header, and says nothing."""
_FUNCTIONS = "functions."
"""What is called there are the client's tools, elsewhere those of the model's own platform."""
_NAMES = re.compile(r"[.:/]")
_GLUED = re.compile(r"[._-]?(?:json|code|commentary|analysis)$")
_FENCES = ("```json", "```")
_INSIDE = ("<|channel|>", "<|constrain|>")
_HEADER_WORDS = ("assistant", "analysis", "commentary", "final", "json", "code", "to=")
_WORDS = re.compile(r"(?:(?:assistant|analysis|commentary|final|json|code|to=\s*[^\s<]++)\s*+)*+")
_PART_OF_RECIPIENT = re.compile(r"to=\s*[^\s<]*+")


@dataclass(frozen=True)
class MessageProtocol:
    """starts begin a header, message ends it and begins the body, ends end the body.

    reasoning_channels: words of the header that say the body is reasoning; reasoning_to, content_to: recipients that
    are no tools. body: how a call's body is written; None = the JSON arguments, the name stands in the header.
    """

    starts: tuple[str, ...]
    message: str
    ends: tuple[str, ...]
    reasoning_channels: tuple[str, ...] = ()
    reasoning_to: tuple[str, ...] = ()
    content_to: tuple[str, ...] = ()
    body: Body | None = None
    body_wrapper: tuple[str, ...] = ()

    @cached_property
    def _begin(self) -> Markers:
        return Markers(self.starts)

    @cached_property
    def _header_end(self) -> Markers:
        return Markers((self.message, *self.ends, *("{" if self.body is None else "")))

    @cached_property
    def _body_end(self) -> Markers:
        return Markers((*self.ends, *self.starts))

    @cached_property
    def _end(self) -> Markers:
        return Markers(self.ends)

    @cached_property
    def _wrapper(self) -> Markers:
        return Markers(self.body_wrapper)

    @cached_property
    def _around(self) -> Markers:
        """What may stand around the arguments: a fence, the end of the header once more."""
        return Markers((*_FENCES, self.message))

    def in_header(self, prompt_suffix: str) -> bool:
        """Whether the prompt ends inside a header, so that the answer goes on with it."""
        start = max(prompt_suffix.rfind(s) for s in self.starts)
        return start > max(prompt_suffix.rfind(w) for w in (self.message, *self.ends))

    def begins(self, lx: Lexer, put: Put) -> Read[bool]:
        """Whether the text begins with a header; puts and consumes nothing but white space."""
        yield from skip_space(lx, put)
        word = yield from at_marker(lx, self._begin)
        if word is not None:
            lx.pos -= len(word)
            return True
        return (yield from self._in_header(lx))

    def _in_header(self, lx: Lexer) -> Read[bool]:
        """Whether the text goes on with a header that the prompt has begun: nothing but its words up to a mark."""
        marks = (self.message, *_INSIDE)
        while True:
            head = lx.buf[lx.pos : lx.pos + MAX_HEADER]
            rest = head[_WORDS.match(head).end() :]  # type: ignore[union-attr]
            if rest.startswith(marks):
                return True
            possible = any(word.startswith(rest) for word in (*marks, *_HEADER_WORDS)) or _PART_OF_RECIPIENT.fullmatch(
                rest
            )
            if not possible or len(head) == MAX_HEADER or lx.at_end():
                return False
            yield

    def read(self, lx: Lexer, out: Output, options: Options, settings: Settings) -> Read[None]:
        """Reads messages to the end of input, or until no more calls are wanted."""
        while options.more():
            lx.mark()
            if (yield from skip_space(lx)) == "":
                lx.unmark()
                return
            parts: list[str] = []
            word = None
            free = 0
            start = lx.consumed
            try:
                word = yield from until(lx, self._header_end, parts.append, limit=MAX_HEADER)
                free = self._free(text := "".join(parts))
                out.content.put(text[:free])
                header = Header(text[free:], settings)
                if word != self.message and not (word == "{" and header.recipient):
                    raise NoCall
                lx.pos += len(word) if word == self.message else 0
                yield from self._read_body(lx, out, options, header)
            except NoCall:
                out.drop_call()
                yield from self._as_text(lx, out, "".join(parts), (word is not None, start + free))

    def _free(self, text: str) -> int:
        """How much text stands in front of a header, in no message."""
        start = min((at for mark in self.starts if (at := text.find(mark)) >= 0), default=0)
        return 0 if _FREE.fullmatch(text, 0, start) or _RECIPIENT.search(text, 0, start) else start

    def _as_text(self, lx: Lexer, out: Output, header: str, place: tuple[bool, int]) -> Read[None]:
        """A message that is no call of a declared tool, or has no header: all of it is text. place: whether the header
        has an end, since one that is cut off is nothing; where the text begins that is not out."""
        headed, start = place
        opened = header.lstrip().startswith(self.starts)
        if lx.starved and lx.cut and (_RECIPIENT.search(header) or (opened and not headed)):
            out.forget_space()
            lx.pos = len(lx.buf)
            lx.unmark()
            return
        if lx.starved and not headed and start > 0 and self._is_half(header):
            lx.unmark()
            return
        lx.rewind()
        lx.pos += max(0, start - lx.consumed)
        whole = opened or _RECIPIENT.search(header) is not None
        word = yield from until(lx, self._end if whole else self._body_end, out.content.put)
        if word in self.ends:
            out.content.put(word if whole else "")
            lx.pos += len(word)

    def _is_half(self, header: str) -> bool:
        """Whether the text ends with half a mark where another message would begin, which is no text."""
        return any(mark.startswith(header.strip()) for mark in (*self.starts, *self.ends))

    def _read_body(self, lx: Lexer, out: Output, options: Options, header: Header) -> Read[None]:
        recipient = header.recipient
        if recipient and recipient not in (*self.reasoning_to, *self.content_to):
            if not header.settings.parses:
                raise NoCall
            yield from self._read_call(lx, out, options, recipient)
            lx.unmark()
            return
        lx.unmark()
        out.flush()
        thinks = recipient in self.reasoning_to or any(w in header.text for w in self.reasoning_channels)
        separate = not thinks or header.settings.separate
        channel = out.reasoning if thinks and separate else out.content
        if not channel.empty:
            channel.put("\n")
        if not separate:
            channel.put(header.text + self.message)
        yield from self._read_text(lx, channel, keep_end=not separate)

    def _read_text(self, lx: Lexer, channel: Channel, *, keep_end: bool) -> Read[None]:
        word = yield from until(lx, self._body_end, channel.put)
        if word in self.ends:
            lx.pos += len(word or "")
            if keep_end:
                channel.put(word or "")

    def _read_call(self, lx: Lexer, out: Output, options: Options, recipient: str) -> Read[None]:
        undeclared = options.undeclared and recipient.startswith(_FUNCTIONS)
        call = out.open_call(hold=options.hold, rescued=options.rescued, undeclared=undeclared)
        lx.ends = self._body_end
        yield from skip_space(lx)
        if self.body is None or not (yield from at_words(lx, (*self.body_wrapper[:1], *self.body.marks[:1]))):
            call.named(next(filter(call.declares, _spellings(recipient)), recipient))
            char = yield from self._skip_around(lx)
            if char in ("{", '"', "'", "n", "["):
                yield from read_arguments(lx, call)
            elif char:
                yield from self._no_arguments(lx)
            elif lx.cut:
                raise NoCall
            call.end()
        else:
            out.drop_call()
            yield from self._read_bodies(lx, out, options)
        while (yield from self._skip_around(lx)) in ("}", "]"):
            lx.pos += 1
        yield from at_marker(lx, self._end)

    def _skip_around(self, lx: Lexer) -> Read[str]:
        char = yield from skip_space(lx)
        while char in self._around.first and (yield from at_marker(lx, self._around)) is not None:
            char = yield from skip_space(lx)
        return char

    def _no_arguments(self, lx: Lexer) -> Read[None]:
        if (yield from at_marker(lx, self._end)) is None:
            raise NoCall

    def _read_bodies(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        assert self.body is not None
        count = 0
        while options.more():
            yield from skip_space(lx)
            if (yield from at_marker(lx, self._wrapper)) is not None:
                continue
            if not (yield from self.body.opens(lx, options)):
                break
            yield from self.body.read(lx, out, options)
            count += 1
            lx.mark()
        if not count:
            raise NoCall


@dataclass(frozen=True, slots=True)
class Settings:
    """separate: reasoning leaves the text. parses: calls are read."""

    separate: bool
    parses: bool


@dataclass(frozen=True, slots=True)
class Header:
    text: str
    settings: Settings

    @property
    def recipient(self) -> str:
        """The last one that the header names: models begin a header anew, and call themselves a recipient. A tool that
        writes to them is none (a result that the model makes up)."""
        named = _RECIPIENT.findall(self.text) or _BARE_RECIPIENT.findall(self.text)
        found = [name for name in named if name != "assistant"]
        return re.sub(r"\s", "", found[-1]) if found else ""


def _spellings(recipient: str) -> list[str]:
    """The names that a recipient may mean: with what is glued to it taken off, the last part of it, and both."""
    plain = recipient.strip("\"'.,;:")
    whole = (recipient, plain, re.sub(r":[0-9]+$", "", plain))
    names = [*whole, *(_NAMES.split(name)[-1] for name in whole)]
    return [*names, *(_GLUED.sub("", name) for name in names)]
