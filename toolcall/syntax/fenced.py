"""A code fence around calls between the family's own marks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from toolcall.lexer import MAX_HEADER, SPACE, Lexer, Markers, NoCall, Read, at_marker, skip_space
from toolcall.output import Output
from toolcall.syntax.block import FENCES, Block, Options

_FENCE = "```"
_INFO = re.compile(rf"[{SPACE}]*+(?:```\w{{0,16}}[{SPACE}]*+)?+")
"""What may stand between a fence and the first mark: another fence."""


@dataclass(frozen=True)
class FencedBlock(Block):
    """own: the family's blocks. Where none begins in the fence it is read as any block."""

    own: tuple[Block, ...] = ()

    @cached_property
    def _blocks(self) -> Mapping[str, Block]:
        return {block.opener: block for block in reversed(self.own)}

    @cached_property
    def _opening(self) -> Markers:
        return Markers(tuple(self._blocks))

    @cached_property
    def _following(self) -> Markers:
        """What may stand behind a call: the fence's end, another block, late ends of the one before."""
        ends = (word for block in self.own for word in (*block.closers, *block.leftovers))
        return Markers((*FENCES, *self._blocks, *ends))

    def read(self, lx: Lexer, out: Output, options: Options) -> Read[bool]:
        """See ``Block.read``."""
        block = yield from self._first(lx)
        if block is None:
            return (yield from super().read(lx, out, options))
        while block is not None:
            try:
                yield from block.read(lx, out, options.inside(block) if options.inside is not None else options)
            except NoCall as no_call:  # what is in the fence is read once more without it
                raise NoCall(idle=no_call.idle, moved=no_call.moved) from None
            if not options.more():
                break
            lx.mark()
            word: str | None = ""
            while word is not None and word not in FENCES and word not in self._blocks:
                yield from skip_space(lx)
                word = yield from at_marker(lx, self._following)
            if word is not None and word in self._blocks:
                block = self._blocks[word]
                lx.pos -= len(word) if block.keep_opener else 0
            elif word is None or ((block := (yield from self._first(lx))) is None and word != _FENCE):
                lx.rewind()
                return False
        lx.unmark()
        return True

    def _first(self, lx: Lexer) -> Read[Block | None]:
        """The block that begins in the fence, its opener consumed as the block wants it; None, and nothing consumed,
        where there is none."""
        while True:
            rest = lx.buf[lx.pos : lx.pos + MAX_HEADER]
            found = _INFO.match(rest)
            assert found is not None
            after = rest[found.end() :]
            possible = after in self._opening.prefixes or _FENCE.startswith(after)
            if not possible or len(rest) == MAX_HEADER or lx.at_end():
                word = self._opening.at(after, 0)
                if word is None:
                    return None
                block = self._blocks[word]
                lx.pos += found.end() + (0 if block.keep_opener else len(word))
                return block
            yield


def may_be_fenced(family: tuple[Block, ...]) -> tuple[Block, ...]:
    """The blocks of a family that can be told from other text in a fence."""
    return tuple(block for block in family if len(block.opener) > 1 and not block.opener.startswith(_FENCE))
