"""Who may wait for how long, by the clock of a simulated engine."""

from __future__ import annotations

import heapq
import random
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from engine import admission
from engine.admission import Admission, Ticket
from engine.client import EngineUnavailable
from engine.messages import FinishReason

STOP = FinishReason(type="stop")


class Engine:
    """``rows`` rows in front of which requests wait in order; a row takes ``seconds`` on average for one.

    Memory lasts for ``fit`` of them. Every half second it says how many are running, as the model process does.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float, max_wait: float, fit: int = 0
    ) -> None:
        self.now = 0.0
        monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: self.now))
        self.admission = Admission(1024, 10**9, max_wait)
        self.admission.set_rows(rows)
        self._rows, self.fit = rows, fit or rows
        self.seconds = seconds
        self.waits: list[float] = []
        self.refused: list[EngineUnavailable] = []
        self.sent_away: list[float] = []
        self._rng = random.Random(rows)
        self._free = self.fit
        self._next_stats = 0.0
        self._queue: list[tuple[float, Ticket, ExitStack]] = []
        self._ends: list[tuple[float, int, Ticket, ExitStack]] = []
        self._count = 0

    def ask(self, choices: int = 1) -> bool:
        """False where it was refused at once."""
        stack = ExitStack()
        try:
            ticket = stack.enter_context(self.admission.enter(choices))
        except EngineUnavailable as error:
            self.refused.append(error)
            return False
        entered = self.now

        def leave(error: EngineUnavailable) -> None:
            self.refused.append(error)
            self.sent_away.append(self.now - entered)
            self._queue = [entry for entry in self._queue if entry[1] is not ticket]
            stack.close()

        ticket.add_tokens(1)
        ticket.may_leave(leave)
        self._queue += [(self.now, ticket, stack)] * choices
        self._start()
        return True

    def run(self, until: float) -> None:
        while self._next_stats <= until:
            self._run(self._next_stats)
            self.admission.note_memory(self.fit - self._free, bool(self._queue) and self.fit < self._rows)
            self._next_stats += 0.5
        self._run(until)

    def _run(self, until: float) -> None:
        while self._ends and self._ends[0][0] <= until:
            self.now, _, ticket, stack = heapq.heappop(self._ends)
            ticket.ended(STOP)
            if not any(entry[1] is ticket for entry in (*self._queue, *((0, t) for _, _, t, _ in self._ends))):
                stack.close()
            self._free += 1
            self._start()
        self.now = until

    def overload(self, factor: float, seconds: float) -> int:
        """Ask at ``factor`` times the rate that the rows can take; returns how often."""
        rate = factor * self.fit / self.seconds
        end = self.now + seconds
        asked = 0
        while self.now < end:
            self.run(self.now + self._rng.expovariate(rate))
            self.ask()
            asked += 1
        return asked

    def _start(self) -> None:
        while self._free and self._queue:
            entered, ticket, stack = self._queue.pop(0)
            ticket.started()
            self.waits.append(self.now - entered)
            self._free -= 1
            self._count += 1
            end = self.now + self.seconds * self._rng.uniform(0.5, 1.5)
            heapq.heappush(self._ends, (end, self._count, ticket, stack))


def quantile(values: list[float], part: float) -> float:
    return sorted(values)[int(len(values) * part)]


@pytest.mark.parametrize("seconds", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("rows", [1, 16, 64])
def test_nobody_waits_much_longer_than_allowed_and_the_queue_is_used(
    monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float
) -> None:
    for max_wait in (seconds / 2, seconds * 3):
        engine = Engine(monkeypatch, rows, seconds, max_wait)
        engine.overload(0.5, 20 * seconds)
        engine.overload(1.7, 60 * seconds)
        late = engine.waits[len(engine.waits) // 2 :]
        assert quantile(late, 0.99) <= 2 * max_wait + seconds / rows
        if max_wait > seconds:
            assert quantile(late, 0.5) >= max_wait / 3
            assert len(engine.waits) >= 0.9 * 60 * rows, "the rows stay busy"
        assert engine.refused
        assert all(1 <= error.retry_after <= 60 for error in engine.refused)


@pytest.mark.parametrize(
    ("rows", "seconds", "factor"), [(4, 1.0, 30), (16, 0.64, 6), (16, 0.64, 10), (64, 1.5, 10), (64, 40.0, 10)]
)
def test_in_a_flood_nobody_waits_for_a_row(
    monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float, factor: int
) -> None:
    engine = Engine(monkeypatch, rows, seconds, 60.0)
    engine.overload(0.5, 20 * seconds)
    engine.waits.clear()
    length = max(60.0, 60 * seconds)
    asked = engine.overload(factor, length)
    assert sum(wait > 0 for wait in engine.waits) <= 0.02 * len(engine.waits)
    assert len(engine.sent_away) <= 0.02 * asked, "most are refused at once"
    assert len(engine.waits) >= 0.9 * length * rows / seconds, "the rows stay busy"
    assert len(engine.waits) + len(engine.refused) + len(engine.admission.queue) == pytest.approx(asked, abs=2)


@pytest.mark.parametrize("fit", [1, 4, 24])
def test_where_memory_is_short_it_counts_instead_of_rows(monkeypatch: pytest.MonkeyPatch, fit: int) -> None:
    """Long prompts: of 64 rows only a few can be computed at once."""
    seconds, max_wait = 10.0, 30.0
    engine = Engine(monkeypatch, 64, seconds, max_wait, fit)
    engine.overload(0.5, 20 * seconds)
    engine.overload(1.7, 60 * seconds)
    late = engine.waits[len(engine.waits) // 2 :]
    assert quantile(late, 0.99) <= 2 * max_wait + seconds / fit
    assert engine.refused
    assert len(engine.waits) >= 0.9 * 60 * fit, "the rows stay busy"


@pytest.mark.parametrize(("fit", "seconds"), [(4, 2.0), (24, 10.0)])
def test_in_a_flood_of_long_prompts_hardly_anybody_waits(
    monkeypatch: pytest.MonkeyPatch, fit: int, seconds: float
) -> None:
    engine = Engine(monkeypatch, 64, seconds, 60.0, fit)
    engine.overload(0.5, 20 * seconds)
    engine.overload(10, 20 * seconds)
    engine.waits.clear()
    engine.overload(10, 60 * seconds)
    assert quantile(engine.waits, 0.5) <= seconds / 2
    assert len(engine.waits) >= 0.9 * 60 * fit, "the rows stay busy"


def test_rows_count_again_when_memory_is_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 64, 1.0, 60.0, 4)
    engine.overload(1.5, 30.0)
    assert engine.admission.rows < 8
    engine.run(engine.now + 100.0)
    assert engine.admission.rows == 64


@pytest.mark.parametrize("seconds", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("rows", [4, 64])
def test_a_burst_is_no_flood(monkeypatch: pytest.MonkeyPatch, rows: int, seconds: float) -> None:
    """Many at once, or one after the other within a fifth of a second, again and again."""
    for apart in (0.0, 0.2 / 300):
        engine = Engine(monkeypatch, rows, seconds, 1e9)
        engine.overload(0.5, 20 * seconds)
        engine.run(engine.now + 10 * seconds)
        for _ in range(3):
            for _ in range(300):
                engine.run(engine.now + apart)
                assert engine.ask()
            engine.run(engine.now + 400 * seconds)
        assert not engine.refused


def test_clients_that_ask_again_when_they_are_answered_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 8, 0.5, 60.0)
    engine.overload(0.5, 10)
    for _ in range(200):
        engine.ask()
    for _ in range(2000):
        answered = len(engine.waits)
        engine.run(engine.now + 0.05)
        for _ in range(len(engine.waits) - answered):
            assert engine.ask()
    assert not engine.refused


def test_clients_that_leave_are_no_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 16, 0.64, 60.0)
    engine.overload(0.5, 10)
    stays = [engine.admission.enter(1) for _ in range(80)]
    with ExitStack() as stack:
        for entered in stays:
            stack.enter_context(entered)
        for _ in range(4000):
            engine.run(engine.now + 0.004)
            with engine.admission.enter(1) as ticket:
                ticket.may_leave(lambda error: pytest.fail("it was sent away"))
    assert not engine.refused


def test_a_flood_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 16, 0.5, 60.0)
    engine.overload(10, 10)
    assert engine.refused
    engine.overload(0.7, 2)
    engine.refused.clear()
    for _ in range(100):
        engine.ask()
    engine.run(engine.now + 10)
    assert not engine.refused, "and a burst may wait again"


def test_who_comes_back_when_told_gets_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowd that comes too fast for a burst, of clients that try three times in all and wait as Retry-After says."""
    engine = Engine(monkeypatch, 16, 0.5, 60.0)
    engine.overload(0.5, 10)
    engine.run(engine.now + 10)
    come = [(engine.now + i / 400, i, 0) for i in range(1200)]
    engine.waits.clear()
    failed = 0
    while come:
        moment, number, tries = heapq.heappop(come)
        engine.run(max(engine.now, moment))
        before = len(engine.refused)
        engine.ask()
        for error in engine.refused[before:]:  # itself or, just as well, another one
            if tries == 2:
                failed += 1
            else:
                heapq.heappush(come, (engine.now + error.retry_after, number, tries + 1))
    engine.run(engine.now + 100)
    assert failed <= 12
    assert len(engine.waits) + failed == 1200


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


def test_nothing_is_left_of_those_that_were_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 16, 0.5, 60.0)
    for _ in range(3):
        engine.overload(10.0, 10.0)
        assert engine.sent_away
        engine.run(engine.now + 100.0)
        found = engine.admission
        assert (found.requests, found.inside, found.tokens, len(found.queue)) == (0, 0, 0, 0)


def test_a_request_whose_first_choice_has_started_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(monkeypatch, 4, 1.0, 60.0)
    with engine.admission.enter(9) as ticket:
        ticket.may_leave(lambda error: pytest.fail("it was sent away"))
        ticket.started()
        engine.admission.note_pace(0.25)
        engine.overload(10.0, 30.0)
        assert engine.refused
        assert ticket.waiting == 8


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
