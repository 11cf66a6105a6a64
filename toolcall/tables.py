"""What the parser looks for in text, worked out once per format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolcall.lexer import Markers
from toolcall.syntax.block import Block

THOUGHT_ENDS = ("</think>",)
"""The end of a thought that began in the prompt, where nobody splits reasoning off."""


@dataclass(frozen=True)
class Tables:
    """blocks: by the opener that begins them anywhere. bare_*: what may begin a call where a call may stand, by
    opener or by first character. markers: everything that interrupts text. anywhere: what is no bare call, whatever it
    begins with. turns: text behind which a call may stand as at the beginning."""

    blocks: Mapping[str, Block]
    bare_blocks: Mapping[str, Block]
    bare_markers: Markers
    bare_first: Mapping[str, Block]
    triggers: frozenset[str]
    markers: Markers
    layout: frozenset[str]
    anywhere: Markers
    turns: tuple[str, ...]

    def hopeless(self, text: str, where: int, word: str) -> bool:
        """Whether this marker opens a block whose text cannot be a call, and so is text."""
        block = self.blocks.get(word)
        return block is not None and word not in self.layout and block.hopeless(text, where + len(word))


def build_tables(blocks: Sequence[Block], bare: Sequence[Block], layout: Sequence[str]) -> Tables:
    """The first block of an opener or a first character wins; where a call may stand, a bare one before one that is
    read anywhere and is not the format's own. layout: tokens that are no content."""
    openers: dict[str, Block] = {}
    for block in blocks:
        openers.setdefault(block.opener, block)
    own = [b for b in bare if b.opener not in openers or openers[b.opener].rescued]
    bare_blocks = {b.opener: b for b in reversed(own) if b.opener}
    first = {c: b for b in reversed(own) if not b.opener for c in b.triggers}
    turns = THOUGHT_ENDS if blocks or bare else ()
    closers = {c for b in (*blocks, *bare) for c in (*b.closers, *b.leftovers) if len(c) > 1}
    return Tables(
        blocks=openers,
        bare_blocks=bare_blocks,
        bare_markers=Markers(tuple(bare_blocks)),
        bare_first=first,
        triggers=frozenset(first) | frozenset(o[0] for o in bare_blocks),
        markers=Markers((*openers, *closers, *layout, *turns)),
        layout=frozenset(layout),
        anywhere=Markers([word for word in (*openers, *layout) if len(word) > 1 and word not in bare_blocks]),
        turns=turns,
    )
