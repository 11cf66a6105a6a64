"""One generation as a stream of parsed deltas: the single source of every dialect, streaming or not.

Leaving ``Generation.deltas()`` early, by closing it or by cancellation, closes the engine's iterator and so aborts
what is left.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Literal, TypeVar, cast

from engine.messages import FinishReason, GenerateOutput
from server.context import RequestContext
from server.custom_tools import CustomCalls
from server.errors import ApiError, from_status
from server.param_names import Rename, renamed
from server.planner import Plan
from server.services import Services
from toolcall import OutputParser
from toolcall.events import Event, ReasoningDelta, ToolCallEnd, ToolCallStart

T = TypeVar("T")
Finish = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class Usage:
    """Token counts of a request; complete when its deltas are."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    def as_dict(self) -> dict[str, object]:
        """OpenAI's ``usage`` of chat and completions."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
        }


@dataclass(slots=True)
class ChoiceDelta:
    """What one engine output of one choice means. ``finish`` is set once, on the choice's last delta."""

    index: int
    events: Sequence[Event]
    output: GenerateOutput
    finish: Finish | None = None


@dataclass(slots=True)
class _Choice:
    parser: OutputParser
    custom: CustomCalls | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    unclaimed_tokens: int = 0
    calls_started: int = 0
    calls_ended: int = 0
    rescued: int = 0
    last_time: float = 0.0
    done: bool = False


@dataclass(slots=True)
class Generation:
    """Runs a Plan. Counts into ``usage``, the metrics and the key's token limit. rename: a refused field as the client
    wrote it."""

    services: Services
    plan: Plan
    context: RequestContext
    rename: Rename = str
    usage: Usage = field(default_factory=Usage)
    _choices: dict[int, _Choice] = field(default_factory=dict)

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Interleaved deltas of all choices. Raises ApiError where the engine fails or the request is aborted."""
        open_choices = self.plan.request.sampling.n
        services, context, ids = self.services, self.context, (self.context.request_id, self.context.response_id)
        services.log_prompts(context, (self.plan.request,))
        try:
            with renamed(self.rename), services.running.enter(context.tenant, ids) as entry:
                async with aclosing(entry.outputs(services.engine.generate(self.plan.request))) as stream:
                    async for output in stream:
                        delta = self._take(output)
                        if delta is None:
                            continue
                        yield delta
                        open_choices -= delta.finish is not None
                        if not open_choices:
                            return
            raise from_status(500, "The engine ended without an answer.")
        finally:
            self._account()

    async def stream(
        self, write: Callable[[ChoiceDelta], bytes], end: Callable[[], bytes]
    ) -> AsyncGenerator[bytes, None]:
        """What ``write`` makes of every delta, where it makes anything, then ``end``: an answer that is streamed."""
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                chunk = write(delta)
                if chunk:
                    yield chunk
        yield end()

    async def fold(self, add: Callable[[ChoiceDelta], object], whole: Callable[[Usage], T]) -> T:
        """Every delta to ``add``, then ``whole``: an answer that is sent at once."""
        async with aclosing(self.deltas()) as deltas:
            async for delta in deltas:
                add(delta)
        return whole(self.usage)

    def _take(self, output: GenerateOutput) -> ChoiceDelta | None:
        choice = self._choices.get(output.index)
        if choice is None:
            choice = self._choices[output.index] = _Choice(
                self.plan.make_parser(), CustomCalls(self.plan.custom) if self.plan.custom else None
            )
        elif choice.done:
            return None
        self._time(choice, output)
        end = output.finish_reason
        if end is not None and end.type in ("abort", "error"):
            self.services.metrics.finished(end.type)
            raise failure(end)
        events = choice.parser.feed(output.text) if output.text else []
        if end is not None:
            events = [*events, *choice.parser.finish("length" if end.type == "length" else "stop")]
        if choice.custom is not None:
            events = choice.custom.apply(events)
        self._count(choice, output, events)
        finish = _finish(choice, end)
        if self.plan.single_call and choice.calls_ended and (finish or not self.plan.ends_itself):
            finish = "tool_calls"
        if finish is not None:
            choice.done = True
            self.services.metrics.finished(finish)
        return ChoiceDelta(output.index, events, output, finish)

    def _time(self, choice: _Choice, output: GenerateOutput) -> None:
        if not output.token_ids:
            return
        came = self.services.metrics.tokens_came
        choice.last_time = came(len(output.token_ids), choice.last_time, self.context.started)

    def _count(self, choice: _Choice, output: GenerateOutput, events: Sequence[Event]) -> None:
        """Token counts. Tokens whose text the parser still holds (markers) belong to what comes out next."""
        self.usage.prompt_tokens = output.prompt_tokens or self.usage.prompt_tokens
        if output.index == 0:  # the others find what the first has just computed: the prompt counts once, as it came
            self.usage.cached_tokens = max(self.usage.cached_tokens, output.cached_tokens)
        choice.completion_tokens = output.completion_tokens or choice.completion_tokens + len(output.token_ids)
        choice.unclaimed_tokens += len(output.token_ids)
        for event in events:
            kind = type(event)
            if kind is ReasoningDelta:
                choice.reasoning_tokens += choice.unclaimed_tokens
            elif kind is ToolCallStart:
                choice.calls_started += 1
            elif kind is ToolCallEnd:
                choice.calls_ended += 1
                choice.rescued += cast("ToolCallEnd", event).rescued
            choice.unclaimed_tokens = 0

    def total(self) -> Usage:
        """The usage so far."""
        self.usage.completion_tokens = sum(choice.completion_tokens for choice in self._choices.values())
        self.usage.reasoning_tokens = sum(choice.reasoning_tokens for choice in self._choices.values())
        return self.usage

    def _account(self) -> None:
        choices, metrics = self._choices.values(), self.services.metrics
        account(self.total(), self.context, self.services)
        ended, rescued = sum(c.calls_ended for c in choices), sum(c.rescued for c in choices)
        metrics.tool_calls_rescued.inc(rescued)
        metrics.tool_calls_parsed.inc(ended - rescued)
        metrics.tool_calls_cut.inc(sum(c.calls_started for c in choices) - ended)


def account(usage: Usage, context: RequestContext, services: Services) -> None:
    """Count the tokens of a request that has ended: for its log line, its key's limits and the metrics."""
    metrics = services.metrics
    context.prompt_tokens, context.completion_tokens = usage.prompt_tokens, usage.completion_tokens
    services.limiter.charge(context.key_digest, usage.prompt_tokens + usage.completion_tokens)
    metrics.prompt_tokens.inc(usage.prompt_tokens)
    metrics.cached_tokens.inc(usage.cached_tokens)
    metrics.completion_tokens.inc(usage.completion_tokens)


def _finish(choice: _Choice, end: FinishReason | None) -> Finish | None:
    if end is None:
        return None
    if end.type == "length":
        return "length"
    return "tool_calls" if choice.calls_ended else "stop"


def failure(end: FinishReason) -> ApiError:
    """What a client is told of a choice that ended with ``abort`` or ``error``."""
    if end.type == "abort":
        return from_status(503, end.message or "The request was aborted.", code="request_aborted")
    return from_status(end.status if end.status >= 400 else 500, end.message or "The engine failed.")
