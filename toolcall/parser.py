"""The one parser of model text, streamed or not.

``[*parser.feed(text), *parser.finish()]`` is the non-streaming answer, so the two modes cannot disagree: what is
read depends on the text alone, not on where it was cut.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from toolcall.events import Event, TextDelta, ToolCallEnd
from toolcall.format import Format, ReasoningFormat
from toolcall.ids import IdFactory, make_id_factory
from toolcall.joining import Joiner
from toolcall.lexer import SPACE, Lexer, Markers, NoCall, Read, at_marker, skip_space, until
from toolcall.output import Channel, Output
from toolcall.reasoning import is_open
from toolcall.schema import NO_TOOLS, ToolSet
from toolcall.syntax.block import Block, EmptyBlock, Options
from toolcall.syntax.messages import MessageProtocol, Settings

EngineFinish = Literal["stop", "length"]

_CODE = re.compile(r"[\s(\[\"':]?`")
_REREAD = 4
"""A character is read again, after a call that was none, so many times on average at most."""


class OutputParser:
    """Turns the text of one answer into events. One parser per choice; nothing is shared between parsers.

    format: how the model writes calls. tools: OpenAI tool declarations; without any, or with tool_choice "none",
    nothing is parsed as a call. reasoning: how the model marks its reasoning, None = it has none.
    prompt_suffix: the end of the rendered prompt, which says whether the reasoning is already open.
    tool_choice: any other than "auto" and "none" is a forced call: what is cut off before it shows is no text.
    parallel_tool_calls False: the parser ends after the first call, see ``stopped``.
    rescue: read calls that the model wrote outside its own format (toolcall.rescue).
    undeclared: hand over whole calls between the format's own marks whose name no tool has, so that the client can
    tell the model; else they stay text. tools may be a ToolSet with names that are refused even then.
    separate_reasoning False: reasoning and its markers stay in the text.
    id_factory: (name, index) -> id; by default the style of the format.
    """

    def __init__(
        self,
        format: Format,
        tools: Sequence[Mapping[str, Any]] | ToolSet,
        *,
        reasoning: ReasoningFormat | None = None,
        prompt_suffix: str = "",
        tool_choice: Any = "auto",
        parallel_tool_calls: bool = True,
        rescue: bool = True,
        undeclared: bool = True,
        id_factory: IdFactory | None = None,
        separate_reasoning: bool = True,
    ) -> None:
        self._format = format
        self._reasoning = reasoning
        self._separate = separate_reasoning
        none = tool_choice == "none"
        self._forced = tool_choice not in ("auto", "none")
        self._parallel = parallel_tool_calls or none
        declared = tools if isinstance(tools, ToolSet) else ToolSet(tools)
        self._parses = bool(declared) and format.reads_calls and (not none or format.own_markers_special)
        self._rescue = rescue and not none
        self._undeclared = undeclared
        tables = format.rescue_tables if self._rescue else format.own_tables
        self._tables = tables if self._parses else format.text_tables
        self._open_closers: tuple[str, ...] = ()
        self._last_closers: tuple[str, ...] = ()
        self._text_marks: set[str] = set()
        """Marks behind a call that was none, which are text as it is."""
        self._draft: list[Event] = []
        make_id = id_factory or make_id_factory(format.id_style)
        self._out = Output(declared if self._parses else NO_TOOLS, make_id)
        self._out.discard_calls = none
        self._lx = Lexer()
        self._joiner = Joiner(format.joined_mark) if self._parses and format.joined_mark else None
        self._finished = False
        self._budget = 0
        self._steps = self._main(prompt_suffix)
        next(self._steps, None)

    # ------------------------------------------------------------------ the door

    @property
    def stopped(self) -> bool:
        """The answer is complete although the engine goes on: one call was asked for and has ended."""
        return not self._parallel and self._out.calls_ended > 0

    def feed(self, text: str) -> list[Event]:
        """The events that this piece of text completes. Costs O(len(text))."""
        if self._joiner is not None:
            text = self._joiner.feed(text)
        if not text:
            return []
        if not self._lx.quick(text):
            if self._finished:
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
        self._lx.append("" if self._joiner is None else self._joiner.finish())
        self._step()
        self._finished = True
        out = self._out
        out.drop_call()
        if engine_finish == "stop" and out.content.empty and not out.calls_ended and self._draft:
            out.add(self._draft)
            out.calls_ended += 1
        if not (out.calls_ended and not out.discard_calls):
            out.content.flush_tail()
        events = out.take()
        if self._forced and self._lx.cut:  # what has waited to the end is the beginning of a call
            events = [event for event in events if not isinstance(event, TextDelta)]
        return events

    def _step(self) -> None:
        try:
            next(self._steps)
        except StopIteration:
            self._finished = True
            self._lx.run = self._lx.prefixes = None

    def _options(self, block: Block) -> Options:
        return Options(
            hold=block.hold,
            rescued=block.rescued,
            strict=block.strict,
            rescue=self._rescue,
            undeclared=self._undeclared and self._format.marks_off(block),
            more=lambda: not self.stopped,
            inside=self._options,
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
        if not protocol.in_header(prompt_suffix) and not (yield from protocol.begins(self._lx, self._out.content.put)):
            yield from self._read_content()
            return
        self._out.content.drop_held()
        settings = Settings(separate=self._separate, parses=self._parses)
        options = Options(undeclared=self._undeclared, more=lambda: not self.stopped)
        yield from protocol.read(self._lx, self._out, options, settings)

    def _read_content(self) -> Read[None]:
        lx, content = self._lx, self._out.content
        fresh = True
        thinks = self._reasoning if self._reasoning is not None and self._reasoning.openers else None
        while not self.stopped:
            if fresh:
                char = yield from skip_space(lx, content.put)
                if char and thinks is not None and (yield from self._skip_thought(thinks)):
                    continue
                if char in self._tables.triggers and (block := (yield from self._bare_block(char))) is not None:
                    fresh = yield from self._read_block(block, 0)
                    continue
            before = lx.consumed
            word = yield from until(lx, self._tables.markers, content.put, skip=self._tables.hopeless, keep=True)
            fresh = fresh and lx.consumed == before
            if word is None:
                rest = lx.buf[lx.pos :]
                special = lx.cut and self._format.own_markers_special and "|>" in rest
                if not special and not (fresh and self._out.calls_ended):  # half a marker is no text there
                    content.put(rest)
                lx.pos = len(lx.buf)
                return
            block = self._tables.blocks.get(word)
            if word in self._tables.turns:
                lx.pos += len(word)
                content.put(word)
                fresh = True
            elif block is None:
                self._layout(word, behind_call=fresh)
            elif self._in_code(block):
                lx.pos += len(word)
                content.put(word)
            else:
                lx.mark()
                lx.pos += 0 if block.keep_opener else len(word)
                fresh = yield from self._read_block(block, len(word))

    def _in_code(self, block: Block) -> bool:
        """Whether a tag that is a call without any wrapper stands at the beginning of inline code: it is spoken of."""
        lone = block.keep_opener and not self._format.own_markers_special
        return lone and _CODE.fullmatch(self._out.content.last) is not None

    def _bare_block(self, char: str) -> Read[Block | None]:
        self._lx.mark()
        if (yield from at_marker(self._lx, self._tables.anywhere)) is not None:
            self._lx.rewind()
            return None
        word = yield from at_marker(self._lx, self._tables.bare_markers)
        block = self._tables.bare_blocks[word] if word is not None else self._tables.bare_first.get(char)
        if block is None:
            self._lx.rewind()
        return block

    def _layout(self, word: str, *, behind_call: bool) -> None:
        """A marker that opens nothing: the late or second close of a block, an end token, or text."""
        self._lx.pos += len(word)
        if word in self._open_closers or (behind_call and word in self._last_closers):
            self._open_closers = ()
        elif word in self._format.end_tokens:
            self._out.content.put_end_token(word)
        elif word in self._format.hidden and word not in self._text_marks:
            self._out.content.pass_layout(word)
        else:
            self._out.content.put(word)
            self._text_marks.discard(word)

    def _read_block(self, block: Block, release: int) -> Read[bool]:
        """Returns whether another call may stand right after it. release: the characters that are certainly text
        if the first call of the block is none; 0 for a bare block, where another kind of block may begin."""
        lx, before = self._lx, self._out.calls_ended
        try:
            closed = yield from block.read(lx, self._out, self._options(block))
        except NoCall as no_call:
            named = self._out.call_is_named
            self._out.drop_call()
            special = self._format.own_markers_special and block.opener and not block.rescued
            if special and isinstance(no_call, EmptyBlock):
                lx.unmark()
                return True
            if self._out.calls_ended - before:
                self._open_closers = block.closers
            moved = self._out.calls_ended - before > 0 or no_call.moved
            if moved:
                release = 1
            if lx.starved and lx.cut and (block.opener or named) and not block.rescued:
                self._out.forget_space()
                lx.unmark()
                lx.pos = len(lx.buf)
                return False
            if self._is_layout(block, idle=no_call.idle, text=not (named or moved)):
                lx.rewind()
                self._layout(block.opener, behind_call=False)
                return False
            if no_call.idle and lx.eof and lx.pos == len(lx.buf) and self._out.calls_ended and not block.rescued:
                lx.unmark()  # a beginning behind the last call
                return False
            if block.opener and not no_call.idle:
                self._text_marks.update(block.marks)
            self._give_back(max(release, no_call.release), idle=no_call.idle)
            return False
        self._open_closers = () if closed else block.closers
        self._last_closers = (*block.closers, *block.leftovers)
        return True

    def _is_layout(self, block: Block, *, idle: bool, text: bool) -> bool:
        """Whether the opener of a block that was no call is a token that is no text, and what stands in the block is
        nothing, or text that is read again."""
        if block.keep_opener or block.opener not in self._format.hidden or not (idle or text):
            return False
        self._budget += 0 if idle else self._lx.since_mark
        return idle or self._budget <= _REREAD * self._lx.consumed

    def _give_back(self, release: int, *, idle: bool) -> None:
        """What was read as a call is text, and is read again behind its opener, for calls inside it."""
        where = self._lx.consumed
        read = self._lx.rewind()
        self._release(self._out.content, release, 0 if idle else read, where)

    def _release(self, channel: Channel, release: int, read: int, where: int) -> None:
        """Hands out text in front of which nothing is a call. All that was read goes out once the text has been read
        too often, which keeps the whole linear. where: the place at which the call turned out to be none."""
        lx = self._lx
        self._budget += read
        if self._budget > _REREAD * where:
            release = max(release, read)
        channel.put(lx.buf[lx.pos : lx.pos + release])
        lx.pos += release

    # ------------------------------------------------------------------ reasoning

    def _read_reasoning(self, fmt: ReasoningFormat, prompt_suffix: str) -> Read[None]:
        """The reasoning at the beginning of the text, if there is any."""
        lx = self._lx
        opened = is_open(fmt, prompt_suffix)
        leading: list[str] = []
        yield from skip_space(lx, leading.append)
        word = yield from at_marker(lx, fmt.opening)
        if word is None and not opened:
            self._out.content.put("".join(leading))
            return
        yield from self._read_thought(fmt, "".join(leading) + (word or ""))

    def _read_thought(self, fmt: ReasoningFormat, opener: str) -> Read[None]:
        """From behind the opener to the closer. separate_reasoning False: opener and closer are text too."""
        lx = self._lx
        self._out.flush()
        if self._separate:
            self._out.content.drop_leading = True
            if not self._out.reasoning.empty:
                self._out.reasoning.put("\n")
        else:
            self._out.content.put(opener)
        channel = self._out.reasoning if self._separate else self._out.content
        markers = Markers((*fmt.ends, *self._tables.blocks))
        while True:
            word = yield from until(lx, markers, channel.put, skip=self._tables.hopeless)
            if word is None:
                return
            if word in fmt.ends:
                lx.pos += len(word)
                if not self._separate:
                    channel.put(word)
                return
            yield from self._probe(word, fmt)

    def _skip_thought(self, fmt: ReasoningFormat) -> Read[bool]:
        """Reasoning that begins where a call may stand (between calls), or a closer without an opener there.
        Returns whether there was one."""
        word = yield from at_marker(self._lx, fmt.both)
        if word in fmt.openers:
            yield from self._read_thought(fmt, word or "")
        elif word is not None and self._separate:
            self._out.content.drop_leading = True
        elif word is not None:
            self._out.content.put(word)
        return word is not None

    def _probe(self, word: str, fmt: ReasoningFormat) -> Read[None]:
        """A call opens inside the reasoning. If the reasoning closes later it was a draft; if it never does, and
        the call is whole, the reasoning ended in front of it. A draft at the very end of the reasoning is the call
        if nothing comes behind it."""
        lx, channel = self._lx, self._out.reasoning if self._separate else self._out.content
        out = self._out
        child = OutputParser(
            self._format,
            out.tools,
            tool_choice="none" if out.discard_calls else "auto",
            parallel_tool_calls=self._parallel,
            rescue=False,
            undeclared=False,
            id_factory=out.make_id,
        )
        child._out.next_index = out.next_index
        events: list[Event] = []

        def put(text: str) -> None:
            for i, char in enumerate(text):
                new = child.feed(char)
                events.extend(new)
                if not child._out.calls_ended and any(isinstance(e, TextDelta) for e in new):
                    lx.pos += i
                    raise NoCall

        lx.mark()
        try:
            if (yield from until(lx, Markers(fmt.ends), put, quick=False)) is None:
                events.extend(child.finish("length" if lx.cut else "stop"))
                if any(isinstance(e, ToolCallEnd) for e in events):
                    self._out.add(events)
                    self._out.calls_ended += child._out.calls_ended
                    lx.unmark()
                    return
            events.extend(child.finish())
            whole = any(isinstance(e, ToolCallEnd) for e in events)
            self._draft = events if whole and not any(isinstance(e, TextDelta) for e in events) else []
            release = lx.rewind()
        except NoCall:
            where = lx.consumed
            read = lx.rewind()
            idle = len(lx.buf[lx.pos + len(word) : lx.pos + read].lstrip(SPACE)) <= 1
            self._release(channel, len(word), 0 if idle else read, where)
            return
        channel.put(lx.buf[lx.pos : lx.pos + release])
        lx.pos += release
