"""A block: what opens it, the calls inside, what closes it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

from toolcall.lexer import MAX_HEADER, SPACE, Lexer, Markers, NoCall, Read, at_marker, peek, second
from toolcall.output import Output

FENCES = ("```json", "```JSON", "```xml", "```tool_call", "```tool_code", "```")


_LINE = r"[ \t]*+\r?\n\s*+"
_PROSE = re.compile(
    _LINE + r"""(\w[^{}<>\[\]`]*+)(?:\{\s*+["']?(?:name|arguments|type|function)["']?\s*+:|<function=)"""
)
_PART_OF_PROSE = re.compile(
    r"[ \t]*+\r?|" + _LINE + r"""(?:\w[^{}<>\[\]`]*+(?:\{\s*+["']?\w*+["']?\s*+|<[a-z]*+)?+)?+"""
)


class EmptyBlock(NoCall):
    """A whole block without any call, which ends here."""


@dataclass(frozen=True, slots=True)
class Options:
    """How calls of a block are handed over.

    hold: only when whole. rescued: marked as such. strict: only the usual keys around name and arguments.
    undeclared: the name may be one that no declared tool has.
    """

    hold: bool = False
    rescued: bool = False
    strict: bool = False
    rescue: bool = True
    undeclared: bool = False
    more: Callable[[], bool] = lambda: True
    """Whether another call may follow (parallel_tool_calls)."""
    inside: Callable[[Block], Options] | None = None
    """The options of a block inside this one."""


class Body(Protocol):
    """One way of writing a call."""

    @property
    def foreign(self) -> bool:
        """Another family's way: read only while rescue is on, and the calls are marked as rescued."""
        ...

    @property
    def marks(self) -> tuple[str, ...]:
        """The markers that its calls begin and end with."""
        ...

    @property
    def first(self) -> str:
        """A regex for the first one or two characters of its calls; "" = any."""
        ...

    def opens(self, lx: Lexer, options: Options) -> Read[bool]:
        """Whether a call of this kind stands here; consumes what comes before the call itself."""
        ...

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[None]:
        """Reads one call into ``out``; raises NoCall where it is none."""
        ...


@runtime_checkable
class Listed(Protocol):
    """A body whose calls may stand in a list."""

    def skip(self, lx: Lexer, out: Output) -> Read[None]:
        """Reads what is written as a call, whatever its name; raises NoCall where that is not so either."""
        ...


@dataclass(frozen=True)
class Block:
    """opener: the marker that begins it, "" for calls that stand bare where a call may stand. keep_opener: the
    opener is part of the first call and the body reads it again.

    closers: what may end it. between: characters that separate calls. inner: markers between calls that are layout.
    leftovers: the same, but only behind a call: closers that it has had already. fences: calls may stand in a fence.
    rescued: the block is none of the format's own. hold, strict: see Options. single: one call only. listed: one of
    several calls may name an undeclared tool; in brackets that is so anyway. only_declared: no call of it may name a
    tool that is not declared.
    triggers: for a bare block without opener, the characters that its calls begin with. prose: text may stand on
    lines of its own between the opener and the first call.
    """

    opener: str
    bodies: tuple[Body, ...]
    closers: tuple[str, ...] = ()
    keep_opener: bool = False
    between: str = SPACE + ",;"
    inner: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    fences: bool = False
    rescued: bool = False
    hold: bool = False
    strict: bool = False
    single: bool = False
    listed: bool = False
    only_declared: bool = False
    triggers: str = ""
    prose: bool = False

    @cached_property
    def _closing(self) -> Markers:
        return Markers(self.closers)

    @cached_property
    def _inner(self) -> Markers:
        return Markers((*self.inner, self._again, *(FENCES if self.fences else ())))

    @cached_property
    def _again(self) -> str:
        """The opener, which may stand there twice."""
        return self.opener if not self.keep_opener and len(self.opener) > 1 else ""

    @cached_property
    def _behind(self) -> tuple[Markers, Markers]:
        """What is layout behind a call: outside and inside a fence."""
        words = (*self.inner, *self.leftovers)
        return Markers(words), Markers((*words, "```"))

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """All that may follow a call."""
        calls = (word for body in self.bodies for word in body.marks)
        return (self.opener, *self.closers, *self.inner, *self.leftovers, *calls)

    @cached_property
    def _ends(self) -> Markers:
        return Markers([mark for mark in self.marks if len(mark) > 1])

    @cached_property
    def _hopeless(self) -> re.Pattern[str] | None:
        firsts = [b.first for b in self.bodies]
        if not all(firsts) or self.keep_opener:
            return None
        begins = "|".join([*firsts, *(re.escape(w[:2]) for w in (*self.closers, *self._inner.words))])
        again = re.escape(self._again)
        longer = any(word.startswith(self._again) and word != self._again for word in self._inner.words)
        thrice = rf"|{again}[{SPACE}]*+{again}" if again and not longer else ""
        return re.compile(rf"[{SPACE}]*+(?:(?!{begins})[^{SPACE}](?s:.){thrice})")

    def hopeless(self, text: str, pos: int) -> bool:
        """Whether the text behind the opener cannot be a call, by its first two characters, or because the opener comes
        twice more. Only saves time: reading would end in an idle NoCall."""
        return self._hopeless is not None and self._hopeless.match(text, pos) is not None

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[bool]:
        """Reads the calls of the block, whose opener is consumed. Returns whether a closer was seen.

        Raises NoCall with the lexer marked where the text begins that is no call. Brackets after a call are layout,
        or one too many, and never text.
        """
        count = 0
        moved = fence = False
        in_list = self.listed
        lx.ends = self._ends if len(self.opener) > 1 and not options.strict else None
        first = options
        if self.prose and options.rescue and (yield from self._pass_prose(lx, out)):
            first = _marked(options)
        while True:
            if count or moved:
                lx.mark()
            fence = yield from self._skip_between(lx, count or moved, fence)
            if self.closers and (yield from at_marker(lx, self._closing)) is not None:
                if not count:
                    raise NoCall(moved=True) if moved else EmptyBlock(idle=True)
                lx.unmark()
                return True
            if not (count or moved) and (yield from self._is_empty(lx)):
                raise EmptyBlock(idle=True)
            in_list = in_list or lx.buf[lx.pos : lx.pos + 1] == "["
            body = yield from self._choose(lx, options)
            if body is None:
                if not count:
                    raise NoCall(idle=not moved, moved=moved)
                if lx.eof and any(mark.startswith(lx.buf[lx.pos :]) for mark in self.marks):
                    lx.pos = len(lx.buf)  # half a marker at the end of the text
                    lx.unmark()
                    return False
                if lx.buf[lx.pos : lx.pos + 1] in ("]", "}", ")"):
                    lx.pos += 1
                    continue
                lx.rewind()
                return False
            release = lx.since_mark
            try:
                yield from body.read(lx, out, _marked(options) if body.foreign else first)
            except NoCall:
                if not in_list or options.rescued or out.call_is_named or (lx.starved and lx.eof):
                    raise NoCall(release, moved=moved) from None
                out.drop_call()
                yield from self._pass_on(lx, out, body, release)
                moved = True
                continue
            count += 1
            first = options
            lx.unmark()
            if self.single or not options.more():
                return not self.closers

    def _pass_prose(self, lx: Lexer, out: Output) -> Read[bool]:
        """Text in front of the first call, which goes out with it; looks no further than it must."""
        while True:
            rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
            found = _PROSE.match(rest)
            if found is not None:
                text = found.group(1)
                if out.tools.may_begin(text.strip()) or out.tools.get(text.split()[0]):
                    return False  # the name of a tool
                out.lead = text
                lx.pos += found.end(1)
                return True
            if len(rest) == MAX_HEADER or _PART_OF_PROSE.fullmatch(rest) is None or lx.at_end():
                return False
            yield

    def _pass_on(self, lx: Lexer, out: Output, body: Body, release: int) -> Read[None]:
        """An element of a list that calls an undeclared tool: it is text, and the calls behind it count."""
        lx.rewind()
        out.content.put(lx.buf[lx.pos : lx.pos + release])
        lx.pos += release
        lx.mark()
        if not isinstance(body, Listed):
            raise NoCall(moved=True)
        try:
            yield from body.skip(lx, out)
        except NoCall:
            raise NoCall(moved=True) from None
        read = lx.rewind()
        out.content.put(lx.buf[lx.pos : lx.pos + read])
        lx.pos += read

    def _is_empty(self, lx: Lexer) -> Read[bool]:
        """Whether the calls are an empty list, which is consumed, with the closer of the block."""
        if lx.buf[lx.pos : lx.pos + 1] != "[" or (yield from second(lx)) != "]":
            return False
        lx.pos = lx.buf.index("]", lx.pos) + 1
        yield from self._skip_between(lx, behind=0, fence=False)
        return not self.closers or (yield from at_marker(lx, self._closing)) is not None or lx.at_end()

    def _skip_between(self, lx: Lexer, behind: int, fence: bool) -> Read[bool]:
        """Returns whether the calls stand in a fence."""
        skip, layout = (self.between, self._behind[fence]) if behind else (SPACE, self._inner)
        again = False
        while True:
            if layout.words and (word := (yield from at_marker(lx, layout))) is not None:
                if behind and word in self.leftovers:
                    lx.mark()
                if word == self._again and again:
                    lx.pos -= len(word)
                    return fence
                again = word == self._again
                fence = fence or (word in FENCES and word not in self.inner)
                continue
            char = yield from peek(lx)
            if not char or char not in skip:
                return fence
            lx.pos += 1

    def _choose(self, lx: Lexer, options: Options) -> Read[Body | None]:
        for body in self.bodies:
            if body.foreign and not options.rescue:
                continue
            if (yield from body.opens(lx, options)):
                return body
        return None


def _marked(options: Options) -> Options:
    return replace(options, hold=True, rescued=True, undeclared=False)
