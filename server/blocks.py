"""One choice as a row of blocks: what Responses calls output items and Messages calls content blocks.

Text, reasoning and calls in the order in which they come, one open at a time. The renderers of both dialects watch
the fold while it grows (streams) or read its blocks when it is done (whole answers).
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine.messages import TokenLogprob
from server.generation import ChoiceDelta, Finish
from toolcall.events import Event, ReasoningDelta, TextDelta, ToolCallArguments, ToolCallEnd, ToolCallStart

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """pieces: text, reasoning, or the JSON text of a call's arguments. cut: still open when the tokens ran out; a call
    is cut until the parser says that it is whole. rescued: a call that the model wrote outside its own format."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    uid: str = field(default_factory=lambda: secrets.token_hex(16))
    pieces: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    cut: bool = False
    rescued: bool = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class BlockSink(Protocol):
    """Told of every change, in order."""

    def opened(self, block: Block) -> None: ...

    def grown(self, block: Block, piece: str, logprobs: Sequence[TokenLogprob]) -> None: ...

    def closed(self, block: Block) -> None: ...


class BlockFold:
    """Folds the deltas of one choice. reasoning: False leaves reasoning out, as if the model had none."""

    def __init__(self, sink: BlockSink | None = None, *, reasoning: bool = True, logprobs: bool = False) -> None:
        self.blocks: list[Block] = []
        self.finish: Finish | None = None
        self._sink = sink
        self._reasoning = reasoning
        self._logprobs = logprobs
        self._pending: list[TokenLogprob] = []
        self._open: Block | None = None

    @property
    def open(self) -> Block | None:
        return self._open

    @property
    def whole(self) -> list[Block]:
        """The answer: every block but a call that was cut off, whose arguments are no JSON."""
        return [block for block in self.blocks if not (block.cut and block.kind == "call")]

    @property
    def rescued(self) -> list[int]:
        """The places of rescued calls in the answer."""
        return [place for place, block in enumerate(self.whole) if block.rescued]

    def add(self, delta: ChoiceDelta) -> None:
        if self._logprobs:
            self._pending.extend(delta.output.logprobs)
        for event in delta.events:
            self._event(event)
        if delta.finish is not None:
            self.finish = delta.finish
            if self._open is not None:
                self._open.cut = delta.finish == "length" or self._open.kind == "call"
            self.close()

    def _event(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._grow("text", event.text)
        elif isinstance(event, ReasoningDelta):
            self._grow("reasoning", event.text)
        elif isinstance(event, ToolCallStart):
            self.begin("call", event.id, event.name)
        elif isinstance(event, ToolCallArguments):
            self._grow("call", event.fragment)
        elif isinstance(event, ToolCallEnd):
            if self._open is not None:
                self._open.cut = False
                self._open.rescued = event.rescued
            self.close()

    def begin(self, kind: Kind, call_id: str = "", name: str = "") -> Block:
        """Open a block, after closing the one before it."""
        self.close()
        block = self._open = Block(kind, len(self.blocks), call_id, name, cut=kind == "call")
        self.blocks.append(block)
        if self._sink is not None:
            self._sink.opened(block)
        return block

    def _grow(self, kind: Kind, piece: str) -> None:
        logprobs, self._pending = self._pending if kind == "text" else [], []
        if kind == "reasoning" and not self._reasoning:
            return
        block = self._open
        if block is None or block.kind != kind:
            if not piece or (piece.isspace() and self.blocks and self.blocks[-1].kind == "call"):
                return  # white space around calls is layout
            block = self.begin(kind)
        block.pieces.append(piece)
        block.logprobs.extend(logprobs)
        if self._sink is not None:
            self._sink.grown(block, piece, logprobs)

    def close(self) -> None:
        """Close the block that is open, if any."""
        block, self._open = self._open, None
        if block is not None and self._sink is not None:
            self._sink.closed(block)
