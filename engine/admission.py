"""How many requests the API process lets wait in front of the engine, for how long, and when it stops."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

from engine.client import EngineUnavailable
from engine.messages import FinishReason

SMOOTHING = 0.1
"""Weight of the newest answer in the estimate of the pace."""
FIRST_PACE = 1e-3
"""Seconds between two ends, as long as no answer has ended."""
MAX_RETRY_AFTER = 60.0
SENT_AWAY_AT_ONCE = 8
"""Waiting requests that one arrival in a flood sends away: all of them at once would hold up the event loop."""


class Ticket:
    """A request's share of the queue, given back choice by choice as they start and end, the rest when it leaves."""

    def __init__(self, admission: Admission, choices: int) -> None:
        self._admission = admission
        self._waiting = self._inside = choices
        self._tokens_each = 0
        self._entered = time.monotonic()
        self._share = max(admission.inside, admission.rows)
        self._send_away: Callable[[EngineUnavailable], None] | None = None

    @property
    def waiting(self) -> int:
        """Choices that have not started."""
        return self._waiting

    def add_tokens(self, each: int) -> None:
        """The prompt is known now. Raises EngineUnavailable where the queue holds too many tokens already."""
        self._admission.take_tokens(each * self._waiting)
        self._tokens_each = each

    def may_leave(self, send_away: Callable[[EngineUnavailable], None]) -> None:
        """``send_away`` ends the request if a flood comes before the first of its choices has started."""
        self._send_away = send_away
        self._admission.queue[self] = None

    def started(self) -> None:
        """One more choice is out of the queue."""
        self._admission.queue.pop(self, None)
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

    def leave(self, error: EngineUnavailable) -> None:
        """The request goes without an answer."""
        self._give_back()
        if self._send_away is not None:
            self._send_away(error)

    def close(self) -> None:
        """The request is over; choices that have not ended are not wanted any more."""
        if self._inside:
            self._admission.note_left(self._inside)
        self._give_back()

    def _give_back(self) -> None:
        self._admission.queue.pop(self, None)
        self._admission.release(self._waiting, self._waiting * self._tokens_each)
        self._admission.inside -= self._inside
        self._waiting = self._inside = 0


class Flood:
    """Tells a flood from a burst: a flood does not end.

    In each of SPANS spans in a row several times more is asked for than can be answered, and by then MIN_EXCESS
    requests, or BATCHES batches, have found no room. A burst that comes within a few spans, or that fits into a few
    batches, is none, and neither are clients, however many, that ask again when they are answered. (The two limits of
    a queue, one for bursts and one while it does not empty, are those of Maurer, "Fail at Scale", 2015.)
    """

    SPANS, FACTOR, CALM = 4, 3.0, 1.5
    MIN_SPAN = 1 / 16
    MIN_EXCESS, BATCHES = 48, 2

    def __init__(self) -> None:
        self.now = False
        self._begun = -math.inf
        self._asked = 0
        self._excess = 0
        self._spans = 0

    def note(self, choices: int, fits: bool, pace: float, rows: int) -> None:
        """``choices`` were asked for; ``fits``: there is room. pace: seconds between two ends."""
        moment = time.monotonic()
        span = max(self.MIN_SPAN, pace, rows * pace / (4 * self.SPANS))
        passed = (moment - self._begun) / span
        if passed >= 1:
            self._end_span(span / pace, passed < 2)
            self._begun = moment
        self._asked += choices
        if not fits:
            self._excess += choices
        if self._spans >= self.SPANS and self._excess >= max(self.MIN_EXCESS, self.BATCHES * rows):
            self.now = True

    def left(self, choices: int) -> None:
        """Those who asked for so many have left: nobody waits for them."""
        self._asked -= choices
        self._excess = max(0, self._excess - choices)

    def _end_span(self, capacity: float, recent: bool) -> None:
        """Count spans: up to SPANS of flood in a row, and as many of calm until it is over."""
        if recent and self._asked > capacity * (self.CALM if self.now else self.FACTOR):
            self._spans = min(self.SPANS, self._spans + 1)
        elif self.now and recent:
            self._spans -= 1
        else:
            self._spans = 0
        if self._spans == 0:
            self.now = False
            self._excess = 0
        self._asked = 0


class Admission:
    """Bounds what waits in front of the engine: in requests, in prompt tokens and in seconds.

    The seconds are an estimate. A request that is the k-th inside when it comes, and whose answer ends T seconds
    later, has seen k requests end in that time where they are served in order (Little's law: k = rate x T), so T / k
    is the time between two ends; with fewer inside than the batch has ``rows``, what counts is the batch when full. A
    new one for which no row is free gets one after as many ends as there are requests too many. That holds whether
    rows, memory or the prompts' length is what is short, and an idle time does not count. Where prompts are so long
    that memory holds fewer of them than the batch could, ``rows`` is how many it holds.

    In a flood nobody waits for a row: a queue as long as allowed would only make every answer late, and those that
    wait already are sent away. Who is refused is told to come back when its turn would be if all came back.
    """

    def __init__(self, max_requests: int, max_tokens: int, max_wait: float = math.inf) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_wait = max_wait
        self._pace = FIRST_PACE
        self._flood = Flood()
        self._turned_away = 0.0
        self._noted = -math.inf
        self._most_rows = self.rows = 1
        self.requests = 0
        self.tokens = 0
        self.inside = 0
        self.queue: dict[Ticket, None] = {}
        """Of which no choice has started and which may be sent away, the oldest first."""

    @contextmanager
    def enter(self, choices: int, *, patient: bool = False) -> Iterator[Ticket]:
        """Take a place for ``choices`` sequences; a patient one waits as long as it takes. Raises EngineUnavailable
        where the queue is full."""
        if not patient:
            self.check_wait(choices)
        if self.requests + choices > max(self._max_requests, choices if self.requests == 0 else 0):
            raise self._full(choices)
        self.requests += choices
        self.inside += choices
        ticket = Ticket(self, choices)
        try:
            yield ticket
        finally:
            ticket.close()

    def set_rows(self, rows: int) -> None:
        """The engine computes ``rows`` requests side by side where memory lasts."""
        self._most_rows = self.rows = rows

    def note_memory(self, running: int, full: bool) -> None:
        """``full``: beside those ``running`` there is no memory for the next one, and so no row. What becomes free is
        believed little by little: in a flood it is free because few are let in."""
        if full:
            self.rows = max(1, min(running, self._most_rows))
        else:
            self.rows = min(self._most_rows, max(self.rows + 1, self.rows * 5 // 4))

    def check_wait(self, choices: int) -> None:
        """Raises EngineUnavailable where ``choices`` more would wait for too long; an empty engine takes any."""
        self._flood.note(choices, self.inside + choices <= self.rows, self._pace, self.rows)
        if self._flood.now:
            self._send_away()
        if self.inside and self.wait(choices) > (0.0 if self._flood.now else self._max_wait):
            raise self._full(choices)

    def wait(self, choices: int) -> float:
        """Seconds until ``choices`` more would have a row each."""
        return max(0, self.inside + choices - self.rows) * self._pace

    def take_tokens(self, tokens: int) -> None:
        if self.tokens > 0 and self.tokens + tokens > self._max_tokens:
            raise self._full(1)
        self.tokens += tokens

    def release(self, requests: int, tokens: int) -> None:
        self.requests -= requests
        self.tokens -= tokens

    def note_left(self, choices: int) -> None:
        """Choices were given up before their end."""
        self._flood.left(choices)

    def note_pace(self, seconds: float) -> None:
        """An answer ended; so long seem two ends to lie apart."""
        known = self._pace != FIRST_PACE
        self._pace = self._pace + SMOOTHING * (seconds - self._pace) if known else seconds

    def _send_away(self) -> None:
        """The oldest of those for which there is no row: they have waited in vain for longest."""
        if self.inside <= self.rows:
            return
        started = self.inside - self.requests
        computed = max(0, self.rows - started)
        for ticket in list(islice(self.queue, computed, computed + SENT_AWAY_AT_ONCE)):
            ticket.leave(self._full(ticket.waiting))

    def _full(self, choices: int) -> EngineUnavailable:
        """Worth another try when half of the queue should have started, and everybody who was refused before."""
        moment = time.monotonic()
        gone = (moment - self._noted) / self._pace
        most = MAX_RETRY_AFTER / self._pace
        self._turned_away = min(most, max(0.0, self._turned_away - gone) + choices)
        self._noted = moment
        seconds = min(MAX_RETRY_AFTER, max(1.0, self.wait(1) / 2 + self._turned_away * self._pace))
        return EngineUnavailable("The waiting queue is full.", retry_after=seconds)
