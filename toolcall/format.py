"""What a format is: a table that the one parser reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from toolcall import rescue
from toolcall.ids import IdStyle
from toolcall.lexer import Markers
from toolcall.syntax.block import Block
from toolcall.syntax.messages import MessageProtocol
from toolcall.tables import Tables, build_tables


@dataclass(frozen=True, kw_only=True)
class Format:
    """How one model family writes its calls.

    blocks: what begins a call anywhere in the text. bare: calls without an opener, only where a call may stand
    (the beginning of the text, after another call). end_tokens: end-of-turn tokens that may be left at the end of
    the text. hidden: layout tokens that are no content. own_markers_special: the markers are special tokens of the
    vocabulary, so they never are text that the model meant to show.
    """

    name: str
    families: str
    blocks: tuple[Block, ...] = ()
    bare: tuple[Block, ...] = ()
    aliases: tuple[str, ...] = ()
    end_tokens: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    joined_mark: str = ""
    """A mark in front of every tag, which white space may follow (toolcall.joining)."""
    own_markers_special: bool = False
    reads_calls: bool = True
    protocol: MessageProtocol | None = None
    """Answers of several messages with headers; blocks and bare then hold for text without any header."""
    reasoning: str | None = None
    id_style: IdStyle = "openai"
    experimental: bool = False
    template_signs: tuple[str, ...] = ()
    """Strings that all stand in the chat template of a model that uses this format."""
    other_signs: tuple[tuple[str, ...], ...] = ()
    """Other such sets of strings."""

    @cached_property
    def _layout(self) -> tuple[str, ...]:
        return (*self.end_tokens, *self.hidden)

    @cached_property
    def own_tables(self) -> Tables:
        return build_tables(self.blocks, [b for b in self.bare if not b.rescued], self._layout)

    @cached_property
    def rescue_tables(self) -> Tables:
        """The format's own ways first, then those of toolcall.rescue."""
        others = (other for block in self.blocks for other in rescue.spelt_otherwise(block))
        blocks = (*map(rescue.with_foreign, self.blocks), *others, *rescue.anywhere_blocks())
        return build_tables(blocks, (*self.bare, *rescue.bare_blocks(self.blocks)), self._layout)

    def marks_off(self, block: Block) -> bool:
        """Whether what stands in the block is meant as a call, whatever name it has."""
        special = self.own_markers_special or not block.keep_opener
        return special and len(block.opener) > 1 and not block.rescued and not block.only_declared

    @cached_property
    def text_tables(self) -> Tables:
        """Where no calls are read."""
        return build_tables((), (), self._layout)


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """How one model family marks its reasoning.

    implied_closers: what begins or ends another part of the answer, and so ends reasoning whose closer is missing.
    starts_open: the text begins inside the reasoning unless the prompt says otherwise. Without openers the reasoning
    is a matter of the tool format's message headers.
    """

    name: str
    families: str
    openers: tuple[str, ...]
    closers: tuple[str, ...]
    implied_closers: tuple[str, ...] = ()
    starts_open: bool = False
    aliases: tuple[str, ...] = ()
    experimental: bool = False

    @cached_property
    def opening(self) -> Markers:
        return Markers(self.openers)

    @cached_property
    def both(self) -> Markers:
        return Markers((*self.openers, *self.closers))

    @property
    def ends(self) -> tuple[str, ...]:
        return (*self.closers, *self.implied_closers)
