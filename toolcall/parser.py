"""The one parser of model text, streamed or not.

``[*parser.feed(text), *parser.finish()]`` is the non-streaming answer, so the two modes cannot disagree: what is
read depends on the text alone, not on where it was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolcall import rescue as rescues
from toolcall.events import Event, TextDelta, ToolCallEnd
from toolcall.format import Format, ReasoningFormat
from toolcall.ids import IdFactory, make_id_factory
from toolcall.lexer import Lexer, Markers, NoCall, Read, at_marker, skip_space, until
from toolcall.output import Output
from toolcall.schema import NO_TOOLS, ToolSet
from toolcall.syntax.block import Block, Options
from toolcall.syntax.messages import MessageProtocol, Settings

EngineFinish = Literal["stop", "length"]

_REREAD = 4
"""A character is read again, after a call that was none, so many times on average at most."""


class OutputParser:
    """Turns the text of one answer into events. One parser per choice; nothing is shared between parsers.

    format: how the model writes calls. tools: OpenAI tool declarations; without any, or with tool_choice "none",
    nothing is parsed as a call. reasoning: how the model marks its reasoning, None = it has none.
    prompt_suffix: the end of the rendered prompt, which says whether the reasoning is already open.
    parallel_tool_calls False: the parser ends after the first call, see ``stopped``.
    rescue: read calls that the model wrote outside its own format (toolcall.rescue).
    separate_reasoning False: reasoning and its markers stay in the text. stream_reasoning False: one delta.
    id_factory: (name, index) -> id; by default the style of the format.
    """

    def __init__(
        self,
        format: Format,
        tools: Sequence[Mapping[str, Any]],
        *,
        reasoning: ReasoningFormat | None = None,
        prompt_suffix: str = "",
        tool_choice: Any = "auto",
        parallel_tool_calls: bool = True,
        rescue: bool = True,
        id_factory: IdFactory | None = None,
        separate_reasoning: bool = True,
        stream_reasoning: bool = True,
    ) -> None:
        self._format = format
        self._reasoning = reasoning
        self._separate = separate_reasoning
        self._parallel = parallel_tool_calls
        none = tool_choice == "none"
        declared = ToolSet(tools)
        self._parses = bool(declared) and format.reads_calls and (not none or format.own_markers_special)
        self._rescue = rescue and not none
        make_id = id_factory or make_id_factory(format.id_style)
        self._out = Output(declared if self._parses else NO_TOOLS, make_id, stream_reasoning=stream_reasoning)
        self._out.discard_calls = none
        self._lx = Lexer()
        self._finished = False
        self._budget = 0
        self._tables()
        self._steps = self._main(prompt_suffix)
        next(self._steps, None)

    # ------------------------------------------------------------------ the door

    @property
    def stopped(self) -> bool:
        """The answer is complete although the engine goes on: one call was asked for and has ended."""
        return not self._parallel and self._out.calls_ended > 0

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text completes. Costs O(len(text))."""
        if not self._lx.quick(text):
            if not text or self._finished:
                return []
            self._lx.append(text)
            self._step()
        return self._out.take()

    def finish(self, engine_finish: EngineFinish = "stop") -> list[Event]:
        """The remaining events. engine_finish ``length``: a call that is cut off gets no end."""
        if self._finished:
            return []
        self._lx.eof = True
        self._lx.cut = engine_finish == "length"
        self._lx.append("")
        self._step()
        self._finished = True
        out = self._out
        out.drop_call()
        if not (out.calls_ended and not out.discard_calls):
            out.content.flush_tail()
        out.flush_reasoning()
        return out.take()

    def _step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._finished = True
            self._lx.run = self._lx.prefixes = None

    # ------------------------------------------------------------------ tables

    def _tables(self) -> None:
        fmt = self._format
        blocks = list(fmt.blocks) if self._parses else []
        bare = list(fmt.bare) if self._parses else []
        if self._parses and self._rescue:
            own = {b.opener for b in (*blocks, *bare)}
            blocks += [b for b in rescues.anywhere_blocks() if b.opener not in own]
            bare += [b for b in rescues.bare_blocks() if b.opener not in own]
        self._blocks = {b.opener: b for b in blocks}
        self._bare = {b.opener: b for b in bare if b.opener}
        self._bare_markers = Markers(tuple(self._bare))
        self._bare_first = {c: b for b in reversed(bare) if not b.opener for c in b.triggers}
        self._triggers = set("".join(b.triggers for b in bare)) | {o[0] for o in self._bare}
        hidden = (*fmt.end_tokens, *fmt.hidden)
        self._closers = frozenset(c for b in (*blocks, *bare) for c in b.closers if len(c) > 1)
        self._markers = Markers((*self._blocks, *self._closers, *hidden))
        self._open_closers: tuple[str, ...] = ()

    def _options(self, block: Block) -> Options:
        return Options(
            hold=block.hold,
            rescued=block.rescued,
            strict=block.strict,
            rescue=self._rescue,
            more=lambda: not self.stopped,
        )

    # ------------------------------------------------------------------ reading

    def _main(self, prompt_suffix: str) -> Read[None]:
        if self._format.protocol is not None:
            yield from self._read_messages(self._format.protocol, prompt_suffix)
            return
        if self._reasoning is not None and self._reasoning.openers:
            yield from self._read_reasoning(self._reasoning, prompt_suffix)
        yield from self._read_content()

    def _read_messages(self, protocol: MessageProtocol, prompt_suffix: str) -> Read[None]:
        if not protocol.in_header(prompt_suffix) and not (yield from protocol.begins(self._lx)):
            yield from self._read_content()
            return
        settings = Settings(separate=self._separate, parses=self._parses)
        yield from protocol.read(self._lx, self._out, Options(more=lambda: not self.stopped), settings)

    def _read_content(self) -> Read[None]:
        lx, content = self._lx, self._out.content
        fresh = True
        while not self.stopped:
            if fresh:
                char = yield from skip_space(lx, content.put)
                if char in self._triggers and (block := (yield from self._bare_block(char))) is not None:
                    fresh = yield from self._read_block(block, 0)
                    continue
            word = yield from until(lx, self._markers, content.put)
            if word is None:
                return
            if word in self._blocks:
                block = self._blocks[word]
                lx.mark()
                if not block.keep_opener:
                    lx.pos += len(word)
                fresh = yield from self._read_block(block, len(word))
            else:
                self._layout(word)

    def _bare_block(self, char: str) -> Read[Block | None]:
        self._lx.mark()
        word = yield from at_marker(self._lx, self._bare_markers)
        block = self._bare[word] if word is not None else self._bare_first.get(char)
        if block is None:
            self._lx.rewind()
        return block

    def _layout(self, word: str) -> None:
        """A marker that opens nothing: the late close of a block, an end token, or text."""
        self._lx.pos += len(word)
        if word in self._open_closers:
            self._open_closers = ()
        elif word in self._format.end_tokens:
            self._out.content.put_end_token(word)
        elif word not in self._format.hidden:
            self._out.content.put(word)

    def _read_block(self, block: Block, release: int) -> Read[bool]:
        """Returns whether another call may stand right after it. release: the characters that are certainly text
        if the first call of the block is none; 0 for a bare block, where another kind of block may begin."""
        lx, before = self._lx, self._out.calls_ended
        try:
            closed = yield from block.read(lx, self._out, self._options(block))
        except NoCall:
            self._out.drop_call()
            calls = self._out.calls_ended - before
            if calls:
                self._open_closers = block.closers
            self._give_back(1 if calls else release, native=not block.rescued)
            return False
        self._open_closers = () if closed else block.closers
        return True

    def _give_back(self, release: int, *, native: bool) -> None:
        """What was read as a call is text. It is read again behind its opener, for calls inside it, within a
        budget that keeps the whole linear."""
        lx = self._lx
        if lx.eof and lx.cut and native and lx.pos >= len(lx.buf):
            lx.unmark()
            return
        read = lx.rewind()
        self._budget += read
        if self._budget > _REREAD * lx.total:
            release = max(release, read)
        self._out.content.put(lx.buf[:release])
        lx.pos = release

    # ------------------------------------------------------------------ reasoning

    def _read_reasoning(self, fmt: ReasoningFormat, prompt_suffix: str) -> Read[None]:
        lx = self._lx
        openers = Markers(fmt.openers)
        opened = _is_open(fmt, prompt_suffix)
        leading: list[str] = []
        yield from skip_space(lx, leading.append)
        word = yield from at_marker(lx, openers)
        if word is None and not opened:
            self._out.content.put("".join(leading))
            return
        if self._separate:
            self._out.content.drop_leading = True
        else:
            self._out.content.put("".join(leading) + (word or ""))
        channel = self._out.reasoning if self._separate else self._out.content
        markers = Markers((*fmt.closers, *(self._blocks if self._parses else ())))
        while True:
            word = yield from until(lx, markers, channel.put)
            if word is None:
                return
            if word in fmt.closers:
                lx.pos += len(word)
                if not self._separate:
                    channel.put(word)
                return
            yield from self._probe(word, fmt)

    def _probe(self, word: str, fmt: ReasoningFormat) -> Read[None]:
        """A call opens inside the reasoning. If the reasoning closes later it was a draft; if it never does, and
        the call is whole, the reasoning ended in front of it."""
        lx, channel = self._lx, self._out.reasoning if self._separate else self._out.content
        child = OutputParser(
            self._format, (), rescue=False, parallel_tool_calls=self._parallel, id_factory=self._out._make_id
        )
        child._adopt(self)
        events: list[Event] = []

        def put(text: str) -> None:
            for i, char in enumerate(text):
                events.extend(child.feed(char))
                if _is_text(events):
                    lx.pos += i
                    raise NoCall

        lx.mark()
        try:
            if (yield from until(lx, Markers(fmt.closers), put, quick=False)) is None:
                events.extend(child.finish("length" if lx.cut else "stop"))
                if any(isinstance(e, ToolCallEnd) for e in events):
                    self._out.add(events)
                    self._out.calls_ended += child._out.calls_ended
                    lx.unmark()
                    return
            release = lx.rewind()
        except NoCall:
            release = len(word)
            read = lx.rewind()
            self._budget += read
            if self._budget > _REREAD * lx.total:
                release = read
        channel.put(lx.buf[:release])
        lx.pos = release

    def _adopt(self, parent: OutputParser) -> None:
        """Become a parser of the same tools and numbering, for text that may turn out to be none."""
        self._parses = parent._parses
        self._out.tools = parent._out.tools
        self._out.discard_calls = parent._out.discard_calls
        self._out.next_index = parent._out.next_index
        self._tables()


def _is_text(events: list[Event]) -> bool:
    for event in events:
        if isinstance(event, ToolCallEnd):
            return False
        if isinstance(event, TextDelta):
            return True
    return False


def _is_open(fmt: ReasoningFormat, prompt_suffix: str) -> bool:
    """Whether the prompt ends inside the reasoning."""
    opened = max((prompt_suffix.rfind(o) for o in fmt.openers), default=-1)
    closed = max((prompt_suffix.rfind(c) for c in fmt.closers), default=-1)
    if opened < 0 and closed < 0:
        return fmt.starts_open
    return opened > closed
