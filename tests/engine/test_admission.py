"""How long a request may wait, by the clock of a simulated engine (RELIABILITY R10)."""

from __future__ import annotations

import heapq
import random
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from engine import req_state
from engine.client import EngineUnavailable
from engine.messages import FinishReason
from engine.req_state import Admission, Ticket

STOP = FinishReason(type="stop")


class Engine:
    """``rows`` rows in front of which requests wait in order; a row takes ``seconds`` on average for one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float, max_wait: float) -> None:
        self.now = 0.0
        monkeypatch.setattr(req_state, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.admission = Admission(1024, 10**9, max_wait)
        self.admission.rows = rows
        self.seconds = seconds
        self.waits: list[float] = []
        self.refused: list[EngineUnavailable] = []
        self._rng = random.Random(rows)
        self._free = rows
        self._queue: list[tuple[float, Ticket, ExitStack]] = []
        self._ends: list[tuple[float, int, Ticket, ExitStack]] = []
        self._count = 0

    def ask(self, choices: int = 1) -> None:
        stack = ExitStack()
        try:
            ticket = stack.enter_context(self.admission.enter(choices))
        except EngineUnavailable as error:
            self.refused.append(error)
            return
        ticket.add_tokens(1)
        self._queue += [(self.now, ticket, stack)] * choices
        self._start()

    def run(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self.now, _, ticket, stack = heapq.heappop(self._ends)
            ticket.ended(STOP)
            if not any(entry[1] is ticket for entry in (*self._queue, *((0, t) for _, _, t, _ in self._ends))):
                stack.close()
            self._free += 1
            self._start()
        self.now = until

    def overload(self, factor: float, seconds: float) -> None:
        """Ask at ``factor`` times the rate that the rows can take."""
        rate = factor * self.admission.rows / self.seconds
        end = self.now + seconds
        while self.now < end:
            self.run(self.now + self._rng.expovariate(rate))
            self.ask()

    def _start(self) -> None:
        while self._free and self._queue:
            entered, ticket, stack = self._queue.pop(0)
            ticket.started()
            self.waits.append(self.now - entered)
            self._free -= 1
            self._count += 1
            end = self.now + self.seconds * self._rng.uniform(0.5, 1.5)
            heapq.heappush(self._ends, (end, self._count, ticket, stack))


@pytest.mark.parametrize("seconds", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_under_overload_nobody_waits_much_longer_than_allowed(
    monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float
) -> None:
    for max_wait in (seconds / 2, seconds * 3):
        engine = Engine(monkeypatch, rows, seconds, max_wait)
        engine.overload(0.5, 20 * seconds)
        engine.overload(10.0, 60 * seconds)
        ordered = sorted(engine.waits[len(engine.waits) // 4 :])
        assert ordered[int(len(ordered) * 0.99)] <= 2 * max_wait + seconds / rows
        if max_wait > seconds:
            assert ordered[len(ordered) // 2] >= max_wait / 3, "and the queue is used"
        assert len(engine.refused) > len(engine.waits)
        assert all(1 <= error.retry_after <= 60 for error in engine.refused)
        assert len(engine.waits) >= 0.9 * 60 * rows, "the rows stay busy"


@pytest.mark.parametrize("rows", [1, 16, 64])
def test_without_a_queue_nobody_waits_and_the_rows_stay_busy(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    engine = Engine(monkeypatch, rows, 1.0, 0.0)
    engine.overload(10.0, 60.0)
    assert max(engine.waits) == 0.0
    assert len(engine.waits) >= 0.85 * 60 * rows
    engine.run(100.0)
    assert (engine.admission.requests, engine.admission.inside, engine.admission.tokens) == (0, 0, 0)
    engine.ask(choices=3 * rows)
    assert engine.admission.inside == 3 * rows, "an empty engine takes any request"


def test_an_idle_time_says_nothing_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 4, 1.0, 60.0)
    for _ in range(5):
        engine.ask()
        engine.run(engine.now + 3600.0)
    for _ in range(200):
        engine.ask()
    assert not engine.refused


def test_requests_that_are_cut_short_say_nothing_of_the_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 1, 1.0, 0.0)
    before = engine.admission.wait(100)
    for type_ in ("abort", "error"):
        with engine.admission.enter(1) as ticket:
            engine.now += 500.0
            ticket.ended(FinishReason(type=type_))
    assert engine.admission.wait(100) == before
    assert engine.admission.inside == 0
