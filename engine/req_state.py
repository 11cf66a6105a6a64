"""What the API process remembers of a request, and how many it lets wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from engine.client import EngineUnavailable
from engine.messages import FinishReason, GenerateOutput, StrRow, TokenLogprob

PIECE_TOKENS = 32
"""Tokens with logprobs that are handed out together at most, where nobody has fetched them for a while."""
SMOOTHING = 0.1
"""Weight of the newest answer in the estimate of the pace."""
FIRST_PACE = 1e-3
"""Seconds between two ends, as long as no answer has ended."""
MAX_RETRY_AFTER = 60.0


class _Piece(msgspec.Struct, array_like=True):
    """Consecutive deltas as one. completion_tokens: at its end."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    completion_tokens: int


class _Pending:
    """Deltas of one choice that nobody has fetched yet, merged.

    Logprobs are kept as MessagePack, a piece of PIECE_TOKENS each, and handed out piece by piece: as objects those of
    20 alternatives take ten times as much, and as JSON in one chunk four times.
    """

    __slots__ = ("_pieces", "last", "logprobs", "prompt_logprobs", "text", "token_ids")

    def __init__(self, row: StrRow) -> None:
        self._pieces: deque[bytes] = deque()
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()
        self._clear()
        self.add(row)

    def _clear(self) -> None:
        self.text: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []

    def add(self, row: StrRow) -> None:
        self.text.append(row.text)
        self.token_ids.extend(row.token_ids)
        self.logprobs.extend(row.logprobs)
        self.prompt_logprobs = row.prompt_logprobs or self.prompt_logprobs
        self.last = row
        if len(self.logprobs) >= PIECE_TOKENS and row.finish_reason is None:
            self._pieces.append(msgspec.msgpack.encode(self._rest()))
            self._clear()

    def _rest(self) -> _Piece:
        logprobs = tuple(self.logprobs)
        return _Piece("".join(self.text), tuple(self.token_ids), logprobs, self.last.completion_tokens)

    def take(self) -> tuple[_Piece, bool]:
        """The next piece, and whether it is the last one."""
        if self._pieces:
            return msgspec.msgpack.decode(self._pieces.popleft(), type=_Piece), False
        return self._rest(), True


class ReqState:
    """The choices of one request on their way back to its one reader.

    Rows go in with ``add`` as they come; ``next`` hands them out, everything that has gathered for a choice as
    one delta. ``ticket`` is told of the start and the end of every choice, whether somebody fetches them or not.
    """

    def __init__(self, n: int, prompt_tokens: int, ticket: Ticket | None = None) -> None:
        self.n = n
        self.rids: list[str] = []
        self._prompt_tokens = prompt_tokens
        self._ticket = ticket
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
            if self._ticket is not None:
                self._ticket.started()
        if row.finish_reason is not None:
            self._finished.add(index)
            if self._ticket is not None:
                self._ticket.ended(row.finish_reason)
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
        piece, whole = pending.take()
        last, prompt_logprobs = pending.last, pending.prompt_logprobs
        if not whole:
            pending.prompt_logprobs = ()
            self._pending[index] = pending
            self._wake.set()
        return GenerateOutput(
            index=index,
            text=piece.text,
            token_ids=piece.token_ids,
            logprobs=piece.logprobs,
            prompt_logprobs=prompt_logprobs,
            finish_reason=last.finish_reason if whole else None,
            prompt_tokens=last.prompt_tokens or self._prompt_tokens,
            cached_tokens=last.cached_tokens,
            completion_tokens=piece.completion_tokens,
        )


class Ticket:
    """A request's share of the queue, given back choice by choice as they start and end, the rest when it leaves."""

    def __init__(self, admission: Admission, choices: int) -> None:
        self._admission = admission
        self._waiting = self._inside = choices
        self._tokens_each = 0
        self._entered = time.monotonic()
        self._share = max(admission.inside, admission.rows)

    def add_tokens(self, each: int) -> None:
        """The prompt is known now. Raises EngineUnavailable where the queue holds too many tokens already."""
        self._admission.take_tokens(each * self._waiting)
        self._tokens_each = each

    def started(self) -> None:
        """One more choice is out of the queue."""
        if self._waiting > 0:
            self._waiting -= 1
            self._admission.release(1, self._tokens_each)

    def ended(self, reason: FinishReason) -> None:
        """One more choice is out of the engine. The time of those that were cut short says nothing of the pace."""
        if self._inside > 0:
            self._inside -= 1
            self._admission.inside -= 1
            if reason.type in ("stop", "length"):
                self._admission.note_pace((time.monotonic() - self._entered) / self._share)

    def close(self) -> None:
        self._admission.release(self._waiting, self._waiting * self._tokens_each)
        self._admission.inside -= self._inside
        self._waiting = self._inside = 0


class Admission:
    """Bounds what waits in front of the engine: in requests, in prompt tokens and in seconds (RELIABILITY H71, R10).

    The seconds are an estimate. A request that is the k-th inside when it comes, and whose answer ends T seconds
    later, has seen k requests end in that time where they are served in order (Little's law: k = rate x T), so T / k
    is the time between two ends; with fewer inside than the batch has ``rows``, what counts is the batch when full. A
    new one for which no row is free gets one after as many ends as there are requests too many. That holds whether
    rows, memory or the prompts' length is what is short, and an idle time does not count.
    """

    def __init__(self, max_requests: int, max_tokens: int, max_wait: float = math.inf) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_wait = max_wait
        self._pace = FIRST_PACE
        self.rows = 1
        self.requests = 0
        self.tokens = 0
        self.inside = 0

    @contextmanager
    def enter(self, choices: int, *, patient: bool = False) -> Iterator[Ticket]:
        """Take a place for ``choices`` sequences; a patient one waits as long as it takes. Raises EngineUnavailable
        where the queue is full."""
        if self.requests + choices > max(self._max_requests, choices if self.requests == 0 else 0):
            raise self._full()
        if not patient:
            self.check_wait(choices)
        self.requests += choices
        self.inside += choices
        ticket = Ticket(self, choices)
        try:
            yield ticket
        finally:
            ticket.close()

    def check_wait(self, choices: int) -> None:
        """Raises EngineUnavailable where ``choices`` more would wait for too long; an empty engine takes any."""
        if self.inside and self.wait(choices) > self._max_wait:
            raise self._full()

    def wait(self, choices: int) -> float:
        """Seconds until ``choices`` more would have a row each."""
        return max(0, self.inside + choices - self.rows) * self._pace

    def take_tokens(self, tokens: int) -> None:
        if self.tokens > 0 and self.tokens + tokens > self._max_tokens:
            raise self._full()
        self.tokens += tokens

    def release(self, requests: int, tokens: int) -> None:
        self.requests -= requests
        self.tokens -= tokens

    def note_pace(self, seconds: float) -> None:
        """An answer ended; so long seem two ends to lie apart."""
        known = self._pace != FIRST_PACE
        self._pace = self._pace + SMOOTHING * (seconds - self._pace) if known else seconds

    def _full(self) -> EngineUnavailable:
        """Worth another try when half of the queue should have started."""
        seconds = min(MAX_RETRY_AFTER, max(1.0, self.wait(1) / 2))
        return EngineUnavailable("The waiting queue is full.", retry_after=seconds)
