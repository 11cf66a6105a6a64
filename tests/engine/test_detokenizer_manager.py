from __future__ import annotations

import gc
import random
import sys

import pytest

from engine.detokenizer_manager import DetokenizerManager, merge
from engine.detokenizer_process import handle
from engine.messages import (
    AbortReq,
    BatchStrOut,
    BatchTokenIDOut,
    ControlReply,
    DecodeParams,
    FinishReason,
    TokenIDRow,
    TokenLogprob,
)
from engine.text.byte_tokenizer import EOS_ID, ByteTokenizer

STOP = FinishReason(type="stop")
LENGTH = FinishReason(type="length")


class Pipe:
    """A manager with its aborts, fed request by request."""

    def __init__(self) -> None:
        self.aborts: list[AbortReq] = []
        self.manager = DetokenizerManager(ByteTokenizer(), self.aborts.append)

    def send(self, *rows: TokenIDRow):
        return self.manager.process(BatchTokenIDOut(rows=rows)).rows


@pytest.fixture
def pipe() -> Pipe:
    return Pipe()


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def first(rid: str, tokens: tuple[int, ...], finish=None, count=0, **decode) -> TokenIDRow:
    return TokenIDRow(
        rid=rid,
        token_ids=tokens,
        completion_tokens=count or len(tokens),
        prompt_tokens=7,
        cached_tokens=3,
        finish_reason=finish,
        decode=DecodeParams(**decode),
    )


def later(rid: str, tokens: tuple[int, ...], count: int, finish=None, **more) -> TokenIDRow:
    return TokenIDRow(rid=rid, token_ids=tokens, completion_tokens=count, finish_reason=finish, **more)


def test_a_request_lives_from_its_first_row_to_its_last(pipe):
    (row,) = pipe.send(first("a", ids("hi")))
    assert (row.text, row.token_ids, row.finish_reason) == ("hi", ids("hi"), None)
    assert len(pipe.manager) == 1
    (row,) = pipe.send(later("a", ids("!"), 3, LENGTH))
    assert (row.text, row.finish_reason, row.completion_tokens) == ("!", LENGTH, 3)
    assert (row.prompt_tokens, row.cached_tokens) == (7, 3)
    assert len(pipe.manager) == 0
    assert pipe.send(later("a", ids("late"), 7)) == ()


def test_the_eos_token_is_counted_but_is_no_text(pipe):
    for skip in (True, False):
        (row,) = pipe.send(first("a", (*ids("ok"), EOS_ID), STOP, skip_special_tokens=skip))
        assert (row.text, row.token_ids, row.completion_tokens) == ("ok", (*ids("ok"), EOS_ID), 3)


def test_a_kept_eos_token_is_text(pipe):
    (row,) = pipe.send(first("a", (*ids("ok"), EOS_ID), STOP, keep_special=("<|im_end|>",)))
    assert row.text == "ok<|im_end|>"


def test_a_stop_token_is_no_text_but_a_grammars_last_token_is(pipe):
    (row,) = pipe.send(first("a", ids("abc"), FinishReason(type="stop", matched=ord("c"))))
    assert row.text == "ab"
    (row,) = pipe.send(first("b", ids("{}"), STOP))
    assert row.text == "{}"


def test_an_unfinished_character_is_flushed_with_the_end(pipe):
    (row,) = pipe.send(first("a", "🎉".encode()[:2]))
    assert row.text == ""
    (row,) = pipe.send(later("a", (), 2, FinishReason(type="abort")))
    assert (row.text, row.finish_reason.type) == ("\ufffd", "abort")


def test_a_stop_string_over_several_rows_ends_once_and_aborts_once(pipe):
    assert pipe.send(first("a", ids("some S"), stop=("STOP",)))[0].text == "some "
    assert pipe.send(later("a", ids("TO"), 8))[0].text == ""
    (row,) = pipe.send(later("a", ids("P more"), 14))
    assert (row.text, row.token_ids, row.completion_tokens) == ("", ids("P"), 9)
    assert row.finish_reason == FinishReason(type="stop", matched="STOP")
    assert pipe.aborts == [AbortReq(rid="a", stop_matched="STOP")]
    assert len(pipe.manager) == 0
    assert pipe.send(later("a", ids("x"), 15)) == ()
    stray = pipe.send(later("a", (), 15, FinishReason(type="stop", matched="STOP")))
    assert [row.rid for row in stray] == ["a"]  # an end is always passed on; the API process knows it is old
    assert len(pipe.aborts) == 1


def test_a_held_tail_is_printed_at_the_end(pipe):
    (row,) = pipe.send(first("a", ids("abcS"), LENGTH, stop=("STOP",)))
    assert (row.text, row.finish_reason) == ("abcS", LENGTH)
    assert pipe.aborts == []


def test_a_stop_string_in_the_last_row_needs_no_abort(pipe):
    (row,) = pipe.send(first("a", (*ids("xSTOPy"), EOS_ID), STOP, stop=("STOP",)))
    assert (row.text, row.finish_reason.matched, row.completion_tokens) == ("x", "STOP", 5)
    assert pipe.aborts == []


def test_stop_after_and_min_tokens(pipe):
    (row,) = pipe.send(first("a", ids("aXb</t>cXd"), stop=("X",), stop_after="</t>"))
    assert (row.text, row.finish_reason.matched) == ("aXb</t>c", "X")
    (row,) = pipe.send(first("b", ids("aXbXc"), stop=("X",), min_tokens=2))
    assert (row.text, row.finish_reason.matched) == ("aXb", "X")


@pytest.mark.parametrize("skip", [True, False])
def test_a_special_token_as_stop_string_stops_whether_it_is_printed_or_not(pipe, skip):
    start = ByteTokenizer().special_tokens["<|im_start|>"]
    tokens = (*ids("hi"), start, *ids("!"))
    (row,) = pipe.send(first("a", tokens, skip_special_tokens=skip, stop=("<|im_start|>", "no")))
    assert (row.text, row.token_ids, row.completion_tokens) == ("hi", (*ids("hi"), start), 3)
    assert row.finish_reason == FinishReason(type="stop", matched="<|im_start|>")
    assert pipe.aborts == [AbortReq(rid="a", stop_matched="<|im_start|>")]


def test_a_special_token_that_nobody_named_is_passed_over(pipe):
    start = ByteTokenizer().special_tokens["<|im_start|>"]
    (row,) = pipe.send(first("a", (*ids("hi"), start, *ids("!")), LENGTH, stop=("<|im_end|>",)))
    assert (row.text, row.finish_reason) == ("hi!", LENGTH)


def test_logprobs_are_cut_with_their_tokens(pipe):
    logprobs = tuple(TokenLogprob(token, -1.0) for token in ids("aXb"))
    row = TokenIDRow(
        rid="a", token_ids=ids("aXb"), logprobs=logprobs, completion_tokens=3, decode=DecodeParams(stop=("X",))
    )
    (out,) = pipe.send(row)
    assert out.logprobs == logprobs[:2]


def test_a_refused_request_ends_though_it_never_began(pipe):
    reason = FinishReason(type="error", message="no", status=400)
    (row,) = pipe.send(TokenIDRow(rid="a", finish_reason=reason, prompt_tokens=4))
    assert (row.finish_reason, row.prompt_tokens) == (reason, 4)
    assert len(pipe.manager) == 0


def test_a_fault_in_one_row_ends_that_request_only(pipe, monkeypatch, caplog):
    pipe.send(first("bad", ids("a")), first("good", ids("a")))

    def broken(*_):
        raise ZeroDivisionError

    pipe.manager._states["bad"].detokenizer.push = None  # any exception will do
    bad, good = pipe.send(later("bad", ids("b"), 2, prompt_tokens=7), later("good", ids("b"), 2))
    assert (bad.prompt_tokens, bad.completion_tokens) == (7, 2)
    assert (bad.finish_reason.type, bad.finish_reason.status) == ("error", 500)
    assert (good.text, good.finish_reason) == ("b", None)
    assert pipe.aborts == [AbortReq(rid="bad")]
    assert len(pipe.manager) == 1


def test_any_split_into_rows_gives_the_same_text():
    rng = random.Random(4)
    text = "Ein Größenwahn 🎉👩‍👩‍👧 STO STOP rest"
    data = ids(text)
    for _ in range(300):
        pipe, at, parts, row = Pipe(), 0, [], None
        while row is None or row.finish_reason is None:
            size = rng.randint(1, 9)
            chunk = data[at : at + size]
            at += size
            finish = LENGTH if at >= len(data) else None
            made = (
                first("a", chunk, finish, stop=("STOP",))
                if row is None
                else later("a", chunk, min(at, len(data)), finish)
            )
            (row,) = pipe.send(made)
            parts.append(row.text)
        assert "".join(parts) == "Ein Größenwahn 🎉👩‍👩‍👧 STO "
        assert row.completion_tokens == len("Ein Größenwahn 🎉👩‍👩‍👧 STO STOP".encode())
        assert len(pipe.manager) == 0


def test_messages_are_passed_on_in_order():
    manager, sent = DetokenizerManager(ByteTokenizer(), lambda _: None), []
    a = BatchTokenIDOut(rows=(first("a", ids("1")),))
    b = BatchTokenIDOut(rows=(later("a", ids("2"), 2),))
    reply = ControlReply(rid="r", ok=True)
    handle(manager, [a, b, reply, BatchTokenIDOut(rows=(later("nobody", (), 1),)), b], sent.append)
    assert [type(message) for message in sent] == [BatchStrOut, ControlReply, BatchStrOut]
    assert [row.text for row in sent[0].rows] == ["1", "2"]
    assert merge([a]) is a


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("rows", [1, 2, 7, 30])
def test_the_memory_of_a_batch_is_given_back(pipe, rows, batches):
    """Also what the interpreter keeps for itself: the process makes so few cycles that nothing ever clears it."""
    rids = [str(index) for index in range(rows)]
    pipe.send(*(first(rid, ids("a")) for rid in rids))
    messages = [BatchTokenIDOut(rows=tuple([later(rid, ids("b"), 2) for rid in rids])) for _ in range(batches)]
    gc.collect()
    gc.disable()
    try:
        blocks = []
        for _ in range(2):
            for _ in range(300):
                handle(pipe.manager, messages, lambda _: None)
            blocks.append(sys.getallocatedblocks())
    finally:
        gc.enable()
    assert blocks[1] - blocks[0] < 30
