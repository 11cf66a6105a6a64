"""What the API process remembers of a request, and how many it lets wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.client import EngineUnavailable
from engine.messages import FinishReason, GenerateOutput, StrRow, TokenLogprob

RATE_WINDOW = 64
"""Recent starts from which the time to wait is estimated."""
MAX_RETRY_AFTER = 60.0


class _Pending:
    """Deltas of one choice that nobody has fetched yet, merged."""

    __slots__ = ("last", "logprobs", "prompt_logprobs", "text", "token_ids")

    def __init__(self, row: StrRow) -> None:
        self.text = [row.text]
        self.token_ids = list(row.token_ids)
        self.logprobs: list[TokenLogprob] = list(row.logprobs)
        self.prompt_logprobs = row.prompt_logprobs
        self.last = row

    def add(self, row: StrRow) -> None:
        self.text.append(row.text)
        self.token_ids.extend(row.token_ids)
        self.logprobs.extend(row.logprobs)
        self.prompt_logprobs = row.prompt_logprobs or self.prompt_logprobs
        self.last = row


class ReqState:
    """The choices of one request on their way back to its one reader.

    Rows go in with ``add`` as they come; ``next`` hands them out, everything that has gathered for a choice as
    one delta. ``on_start`` is called once for every choice, at its first row.
    """

    def __init__(self, n: int, prompt_tokens: int, on_start: Callable[[], None] = lambda: None) -> None:
        self.n = n
        self.rids: list[str] = []
        self._prompt_tokens = prompt_tokens
        self._on_start = on_start
        self._pending: dict[int, _Pending] = {}
        self._started: set[int] = set()
        self._finished: set[int] = set()
        self._submitted = 0
        self._delivered = 0
        self._wake = asyncio.Event()

    def next_index(self) -> int:
        """The index of the choice that is submitted next."""
        self._submitted += 1
        return self._submitted - 1

    def add(self, index: int, row: StrRow) -> None:
        if index in self._finished:
            return
        if index not in self._started:
            self._started.add(index)
            self._on_start()
        if row.finish_reason is not None:
            self._finished.add(index)
        pending = self._pending.get(index)
        if pending is None:
            self._pending[index] = _Pending(row)
        else:
            pending.add(row)
        self._wake.set()

    def fail(self, index: int, message: str, status: int) -> None:
        """End one choice with an error."""
        reason = FinishReason(type="error", message=message, status=status)
        previous = self._pending.get(index)
        counted = previous.last.completion_tokens if previous is not None else 0
        self.add(index, StrRow(rid="", finish_reason=reason, completion_tokens=counted))

    @property
    def done(self) -> bool:
        """The end of every choice has been handed out."""
        return self._delivered >= self.n

    async def next(self) -> list[GenerateOutput]:
        """The next delta of every choice that has one; waits for the first."""
        await self._wake.wait()
        self._wake.clear()
        ready, self._pending = self._pending, {}
        outputs = [self._output(index, pending) for index, pending in ready.items()]
        self._delivered += sum(output.finish_reason is not None for output in outputs)
        return outputs

    def _output(self, index: int, pending: _Pending) -> GenerateOutput:
        last = pending.last
        return GenerateOutput(
            index=index,
            text="".join(pending.text),
            token_ids=tuple(pending.token_ids),
            logprobs=tuple(pending.logprobs),
            prompt_logprobs=pending.prompt_logprobs,
            finish_reason=last.finish_reason,
            prompt_tokens=last.prompt_tokens or self._prompt_tokens,
            cached_tokens=last.cached_tokens,
            completion_tokens=last.completion_tokens,
        )


class Ticket:
    """A request's share of the queue, given back choice by choice as they start, the rest when it leaves."""

    def __init__(self, admission: Admission, choices: int) -> None:
        self._admission = admission
        self._waiting = choices
        self._tokens_each = 0

    def add_tokens(self, each: int) -> None:
        """The prompt is known now. Raises EngineUnavailable where the queue holds too many tokens already."""
        self._admission.take_tokens(each * self._waiting)
        self._tokens_each = each

    def started(self) -> None:
        """One more choice is out of the queue."""
        if self._waiting > 0:
            self._waiting -= 1
            self._admission.release(1, self._tokens_each)
            self._admission.note_start()

    def close(self) -> None:
        self._admission.release(self._waiting, self._waiting * self._tokens_each)
        self._waiting = 0


class Admission:
    """Bounds what waits in front of the engine, in requests and in prompt tokens (RELIABILITY H71)."""

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._starts: deque[float] = deque(maxlen=RATE_WINDOW)
        self.requests = 0
        self.tokens = 0

    @contextmanager
    def enter(self, choices: int) -> Iterator[Ticket]:
        """Take a place for ``choices`` sequences. Raises EngineUnavailable where the queue is full."""
        if self.requests + choices > max(self._max_requests, choices if self.requests == 0 else 0):
            raise self._full()
        self.requests += choices
        ticket = Ticket(self, choices)
        try:
            yield ticket
        finally:
            ticket.close()

    def take_tokens(self, tokens: int) -> None:
        if self.tokens > 0 and self.tokens + tokens > self._max_tokens:
            raise self._full()
        self.tokens += tokens

    def release(self, requests: int, tokens: int) -> None:
        self.requests -= requests
        self.tokens -= tokens

    def note_start(self) -> None:
        self._starts.append(time.monotonic())

    def _full(self) -> EngineUnavailable:
        return EngineUnavailable("The waiting queue is full.", retry_after=self._retry_after())

    def _retry_after(self) -> float:
        """Seconds until half of the queue should have started, by the pace of late."""
        if len(self._starts) < 2:
            return 1.0
        pace = (len(self._starts) - 1) / max(1e-3, time.monotonic() - self._starts[0])
        return min(MAX_RETRY_AFTER, max(1.0, self.requests / 2 / pace))
