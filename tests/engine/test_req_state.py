"""What the API process remembers of a request: the ticket is told of every choice's start and end, once."""

from __future__ import annotations

from engine.messages import FinishReason, StrRow
from engine.req_state import ReqState

STOP = FinishReason(type="stop")


class Told:
    """A ticket that writes down what it hears."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def started(self) -> None:
        self.words.append("started")

    def ended(self, reason: FinishReason) -> None:
        self.words.append(reason.type)


def make(n: int) -> tuple[ReqState, Told]:
    ticket = Told()
    return ReqState(n, 7, ticket), ticket  # type: ignore[arg-type]


async def test_each_choice_starts_once_and_ends_once() -> None:
    state, ticket = make(2)
    for word in ("a", "b"):
        state.add(0, StrRow(rid="r", text=word, completion_tokens=1))
    state.add(0, StrRow(rid="r", finish_reason=STOP, completion_tokens=2))
    state.add(0, StrRow(rid="r", text="late", completion_tokens=3))
    assert ticket.words == ["started", "stop"]
    state.fail(1, "gone", 503)
    state.fail(1, "gone", 503)
    assert ticket.words == ["started", "stop", "started", "error"]
    first, second = await state.next()
    assert (first.text, first.completion_tokens) == ("ab", 2)
    assert second.finish_reason is not None
    assert (second.finish_reason.status, second.completion_tokens) == (503, 0)
    assert state.done


async def test_a_choice_that_fails_keeps_the_tokens_that_nobody_had_fetched() -> None:
    state, _ = make(1)
    state.add(0, StrRow(rid="r", text="a", completion_tokens=3))
    state.fail(0, "gone", 503)
    (output,) = await state.next()
    assert (output.text, output.completion_tokens) == ("a", 3)


async def test_a_choice_that_fails_keeps_the_count_of_what_was_fetched() -> None:
    state, _ = make(2)
    state.add(0, StrRow(rid="r", text="a", completion_tokens=3, cached_tokens=2))
    await state.next()
    state.fail(0, "gone", 503)
    state.fail(1, "gone", 503)
    outputs = await state.next()
    assert [(output.completion_tokens, output.cached_tokens) for output in outputs] == [(3, 2), (0, 0)]
