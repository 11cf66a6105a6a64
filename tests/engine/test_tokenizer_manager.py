from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import ExitStack

import pytest

from engine.client import EngineError, EngineUnavailable
from engine.config import EngineConfig
from engine.ipc import PipeBlocked
from engine.messages import (
    AbortReq,
    BatchStrOut,
    ControlReply,
    EmbedOut,
    EmbedReqInput,
    FinishReason,
    FlushCacheReq,
    GenerateReqInput,
    ModelInfo,
    SchedulerStats,
    StatsReq,
    StrRow,
    TokenizedGenerateReqInput,
    TokenLogprob,
    TopLogprob,
)
from engine.req_state import PIECE_TOKENS, ReqState
from engine.sampling_params import SamplingParams
from engine.text.byte_tokenizer import VOCAB_SIZE, ByteTokenizer
from engine.tokenizer_manager import ENGINE_STOPPED, LONG_TEXT, TokenizerManager

INFO = ModelInfo(
    model_path="m",
    served_name="m",
    architecture="hash-lm",
    context_length=1000,
    vocab_size=VOCAB_SIZE,
    eos_token_ids=(),
    kv_capacity_tokens=900,
    max_running_requests=4,
    device="cpu",
    dtype="x",
)
END = FinishReason(type="length")


class Rig:
    """A manager with an engine that is a list; the test answers by hand."""

    def __init__(self, **config) -> None:
        self.sent: list = []
        self.manager = TokenizerManager(EngineConfig(model="hash-lm", **config), ByteTokenizer())
        self.manager.attach(INFO, self.sent.append)
        self.manager.open()

    @property
    def requests(self) -> list[TokenizedGenerateReqInput]:
        return [message for message in self.sent if isinstance(message, TokenizedGenerateReqInput)]

    @property
    def aborts(self) -> list[str]:
        return [message.rid for message in self.sent if isinstance(message, AbortReq)]

    def row(self, rid: str, text: str = "", finish: FinishReason | None = None, **more) -> None:
        tokens = tuple(text.encode())
        self.manager.receive(
            BatchStrOut(rows=(StrRow(rid=rid, text=text, token_ids=tokens, finish_reason=finish, **more),))
        )

    def generate(self, text: str = "hi", **sampling):
        return self.manager.generate(GenerateReqInput(text=text, sampling=SamplingParams(**sampling)))

    async def start(self, *args, **sampling):
        """A stream whose request has been sent; (task collecting it, its last rid)."""
        task = asyncio.create_task(collect(self.generate(*args, **sampling)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return task, self.requests[-1].rid


async def collect(stream):
    return [output async for output in stream]


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_deltas_come_out_as_they_went_in(rig):
    stream = rig.generate(max_tokens=9)
    pending = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    (sent,) = rig.requests
    assert (sent.input_ids, sent.sampling.max_tokens, sent.sampling.n) == ((104, 105), 9, 1)
    assert len(sent.rid) >= 32
    rig.row(sent.rid, "a", cached_tokens=1, completion_tokens=1, prompt_tokens=2)
    output = await pending
    assert (output.text, output.token_ids, output.prompt_tokens, output.cached_tokens) == ("a", (97,), 2, 1)
    rig.row(sent.rid, "b", END, completion_tokens=2)
    assert [output.text async for output in stream] == ["b"]
    assert (rig.manager.num_requests, rig.aborts) == (0, [])


async def test_what_nobody_fetches_is_merged(rig):
    stream = rig.generate()
    pending = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    rid = rig.requests[0].rid
    rig.row(rid, "a")
    await pending
    for index in range(1000):
        rig.row(rid, "x", completion_tokens=index + 2)
    rig.row(rid, "", END, completion_tokens=1001)
    (output,) = [output async for output in stream]
    assert (output.text, len(output.token_ids)) == ("x" * 1000, 1000)
    assert (output.finish_reason, output.completion_tokens) == (END, 1001)


def logprob(index: int, alternatives: int = 0) -> TokenLogprob:
    top = tuple(TopLogprob(1000 * index + rank, -index / 7 - rank / 3) for rank in range(alternatives))
    return TokenLogprob(index, -index / 7, top)


@pytest.mark.parametrize("fetched_at", [(), (1,), (50, 51, 200), (32, 64, 65, 193), tuple(range(0, 300, 7))])
@pytest.mark.parametrize("end", [END, FinishReason(type="error", message="no", status=500)])
async def test_logprobs_that_nobody_fetches_come_in_pieces_and_in_order(rig, fetched_at, end):
    """However the reader falls behind: the same tokens, texts and counts, nothing twice and nothing lost."""
    stream = rig.generate(n=2)
    pending = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    rids = [request.rid for request in rig.requests]
    outputs = []
    for index in range(300):
        for rid in rids:
            more = {"prompt_logprobs": (logprob(5),)} if index == 0 else {}
            rig.row(rid, chr(97 + index % 26), logprobs=(logprob(index, 3),), completion_tokens=index + 1, **more)
        if index in fetched_at:
            outputs.append(await pending)
            pending = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
    for rid in rids:
        rig.row(rid, "", end, completion_tokens=300)
    outputs += [await pending, *[output async for output in stream]]
    for choice in (0, 1):
        own = [output for output in outputs if output.index == choice]
        ids = [token_id for output in own for token_id in output.token_ids]
        assert ids == [97 + index % 26 for index in range(300)]
        assert "".join(output.text for output in own) == "".join(map(chr, ids))
        assert [item for output in own for item in output.logprobs] == [logprob(index, 3) for index in range(300)]
        assert [item for output in own for item in output.prompt_logprobs] == [logprob(5)]
        assert max(len(output.logprobs) for output in own) <= 2 * PIECE_TOKENS
        counted = 0
        for output in own:
            counted += len(output.token_ids)
            assert output.completion_tokens == counted
        assert [output.finish_reason for output in own] == [None] * (len(own) - 1) + [end]


def test_a_reader_that_stalls_costs_little_memory():
    """1,500 tokens with 20 alternatives each, kept for a client that reads none of them."""
    state = ReqState(1, 1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for index in range(1500):
            row = StrRow(rid="r", text="x", token_ids=(index,), logprobs=(logprob(index, 20),))
            state.add(0, row)
        assert tracemalloc.get_traced_memory()[0] - before <= 1_000_000
    finally:
        tracemalloc.stop()


async def test_leaving_the_stream_aborts_what_is_left(rig):
    stream = rig.generate(n=3)
    pending = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    rids = [request.rid for request in rig.requests]
    rig.row(rids[1], "a", END)
    await pending
    await stream.aclose()
    assert sorted(rig.aborts) == sorted([rids[0], rids[2]])
    assert rig.manager.num_requests == 0
    rig.row(rids[0], "late")  # ignored
    await rig.manager.wait_idle()


async def test_a_cancelled_reader_aborts_too(rig):
    task, rid = await rig.start()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert rig.aborts == [rid]
    assert rig.manager.num_requests == 0


async def test_a_stream_that_is_never_read_is_never_sent(rig):
    stream = rig.generate()
    await stream.aclose()
    assert rig.sent == []


async def test_choices_have_seeds_in_a_row(rig):
    task, _ = await rig.start(n=3, seed=40)
    assert [request.sampling.seed for request in rig.requests] == [40, 41, 42]
    for request in rig.requests:
        rig.row(request.rid, "x", END)
    assert sorted(output.index for output in await task) == [0, 1, 2]


async def test_choices_without_a_seed_get_different_ones(rig):
    task, _ = await rig.start(n=3)
    assert len({request.sampling.seed for request in rig.requests}) == 3
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_choices_of_a_long_prompt_wait_for_the_prefix(rig):
    task, rid = await rig.start("x" * 100, n=3)
    assert len(rig.requests) == 1
    rig.row(rid, "a")
    await asyncio.sleep(0)
    assert len(rig.requests) == 3
    for request in rig.requests:
        rig.row(request.rid, "b", END)
    await task


async def test_choices_of_a_long_prompt_are_sent_though_the_first_one_failed(rig):
    task, rid = await rig.start("x" * 100, n=2)
    rig.row(rid, "", FinishReason(type="error", message="no", status=500))
    await asyncio.sleep(0)
    rig.row(rig.requests[1].rid, "b", END)
    assert [output.finish_reason.type for output in await task] == ["error", "length"]


@pytest.mark.parametrize(
    ("text", "sampling", "code", "param"),
    [
        ("", {}, "invalid_value", "prompt"),
        ("x" * 900, {}, "context_length_exceeded", "messages"),
        ("x" * 10**6, {}, "context_length_exceeded", "messages"),
        ("x", {"temperature": float("nan")}, "invalid_value", "temperature"),
        ("x", {"max_tokens": 0}, "invalid_value", "max_tokens"),
        ("x", {"stop_token_ids": (VOCAB_SIZE,)}, "invalid_value", "stop_token_ids"),
        ("x", {"n": 10**6}, "invalid_value", "n"),
    ],
)
async def test_refusals(rig, text, sampling, code, param):
    with pytest.raises(EngineError) as caught:
        await collect(rig.generate(text, **sampling))
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, code, param)
    assert rig.sent == []


async def test_the_context_message_begins_as_clients_expect(rig):
    with pytest.raises(EngineError, match=r"^This model's maximum context length is 900 tokens\."):
        await collect(rig.generate("x" * 950))


@pytest.mark.parametrize(("asked", "granted"), [(None, 895), (10, 10), (895, 895), (896, 895), (10**9, 895)])
async def test_max_tokens_is_what_the_prompt_leaves(rig, asked, granted):
    task, _ = await rig.start("hello", max_tokens=asked)
    assert rig.requests[0].sampling.max_tokens == granted
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ids", [(-1,), (VOCAB_SIZE,), (1, 2, 10**30)])
async def test_ids_outside_the_vocabulary_are_refused(rig, ids):
    with pytest.raises(EngineError):
        await collect(rig.manager.generate(GenerateReqInput(input_ids=ids)))


@pytest.mark.parametrize(("text", "encoded"), [("x" * 200_000, 7200), (" " * 200_000, 200_000), ("x" * 7200, 7200)])
async def test_a_text_far_beyond_the_context_is_refused_after_a_part_of_it(rig, monkeypatch, text, encoded):
    """Where the beginning leaves it open, more is encoded, four times as much each time."""
    sizes = []

    def encode(text, **_):
        sizes.append(len(text))
        return [1] * (len(text) - text.count(" ") * 199 // 200)

    monkeypatch.setattr(rig.manager.tokenizer, "encode", encode)
    with pytest.raises(EngineError) as caught:
        await collect(rig.generate(text))
    assert caught.value.code == "context_length_exceeded"
    assert sizes[-1] == encoded
    assert sizes == sorted(set(sizes))


async def test_ids_that_cannot_fit_are_refused_unread(rig):
    """Whether each of millions of ids exists is asked only where they could be a prompt."""
    for ask in (
        lambda ids: collect(rig.manager.generate(GenerateReqInput(input_ids=ids))),
        lambda ids: rig.manager.embed([ids]),
    ):
        with pytest.raises(EngineError) as caught:
            await ask((-1,) * 901)
        assert caught.value.code == "context_length_exceeded"


async def test_a_long_text_is_encoded_beside_the_event_loop(rig, monkeypatch):
    threads = []
    monkeypatch.setattr(asyncio, "to_thread", lambda function, *args: threads.append(function) or _now(function, args))
    rig.manager.attach(
        ModelInfo(**{**_fields(INFO), "context_length": 10**6, "kv_capacity_tokens": 10**6}), rig.sent.append
    )
    for size, used in ((LONG_TEXT - 1, 0), (LONG_TEXT, 1)):
        task, _ = await rig.start("x" * size)
        await asyncio.sleep(0)
        rig.row(rig.requests[-1].rid, "", END)
        await task
        assert len(threads) == used


async def _now(function, args):
    return function(*args)


def _fields(info: ModelInfo) -> dict:
    return {name: getattr(info, name) for name in info.__struct_fields__}


async def test_a_dead_engine_ends_every_choice(rig):
    first, rid = await rig.start(n=2)
    second, _ = await rig.start()
    rig.row(rid, "some")
    await asyncio.sleep(0)
    rig.manager.detach("restarting")
    for task in (first, second):
        outputs = await task
        ends = [output.finish_reason for output in outputs if output.finish_reason]
        assert {(end.type, end.status, end.message) for end in ends} == {("error", 503, ENGINE_STOPPED)}
    assert rig.aborts == []  # there is nobody to tell
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.manager.attach(INFO, rig.sent.append)
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.manager.open()
    task, rid = await rig.start()
    rig.row(rid, "again", END)
    assert (await task)[0].text == "again"


async def test_choices_not_sent_yet_fail_with_the_engine(rig):
    task, _ = await rig.start("x" * 100, n=3)
    rig.manager.detach("restarting")
    outputs = await task
    assert sorted(output.index for output in outputs) == [0, 1, 2]
    assert {output.finish_reason.type for output in outputs} == {"error"}


async def test_a_request_that_is_encoded_while_the_engine_dies_is_refused(rig, monkeypatch):
    async def die(*_):
        rig.manager.detach("restarting")
        return [1]

    monkeypatch.setattr(asyncio, "to_thread", die)
    rig.manager.attach(
        ModelInfo(**{**_fields(INFO), "context_length": 10**6, "kv_capacity_tokens": 10**6}), rig.sent.append
    )
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate("x" * LONG_TEXT))
    assert rig.requests == []


async def test_draining_lets_those_inside_finish(rig):
    task, rid = await rig.start()
    rig.manager.drain()
    assert rig.manager.state == "draining"
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    waiting = asyncio.create_task(rig.manager.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.row(rid, "done", END)
    assert (await task)[0].text == "done"
    await waiting
    rig.manager.open()
    assert rig.manager.state == "draining"
    rig.manager.detach("restarting")
    assert rig.manager.state == "draining"


async def test_draining_waits_for_requests_that_belong_together(rig):
    with rig.manager.together() as inside:
        rig.manager.drain()
        waiting = asyncio.create_task(rig.manager.wait_idle())
        for text in ("one", "two"):
            task = asyncio.create_task(collect(inside.generate(GenerateReqInput(text=text))))
            await asyncio.sleep(0)
            rig.row(rig.requests[-1].rid, text, END)
            assert (await task)[-1].text == text
            await asyncio.sleep(0)
            assert not waiting.done()
        with pytest.raises(EngineUnavailable):
            await collect(rig.generate())
        embedding = asyncio.create_task(inside.embed([[1, 2]]))
        await asyncio.sleep(0)
        rig.manager.receive(EmbedOut(rid=rig.sent[-1].rid, embedding=(1.0,), prompt_tokens=2))
        assert await embedding == [(1.0,)]
    await waiting


async def test_draining_waits_for_embeddings(rig):
    asked = asyncio.create_task(rig.manager.embed([[1, 2]]))
    await asyncio.sleep(0)
    rig.manager.drain()
    waiting = asyncio.create_task(rig.manager.wait_idle())
    await asyncio.sleep(0)
    assert not waiting.done()
    rig.manager.receive(EmbedOut(rid=rig.sent[-1].rid, embedding=(1.0,), prompt_tokens=2))
    assert await asked == [(1.0,)]
    await waiting


async def test_draining_waits_for_choices_that_are_not_sent_yet(rig):
    """The first choice has ended, and its reader has not come round to sending the others."""
    task, rid = await rig.start("x" * 100, n=2)
    rig.manager.drain()
    waiting = asyncio.create_task(rig.manager.wait_idle())
    await asyncio.sleep(0)
    rig.row(rid, "a", END)
    assert len(rig.requests) == 1
    assert not rig.manager._idle.is_set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    rig.row(rig.requests[-1].rid, "b", END)
    assert [output.text for output in await task] == ["a", "b"]
    await waiting


async def test_nothing_begins_after_the_time_to_drain(rig):
    with rig.manager.together() as inside:
        task = asyncio.create_task(collect(inside.generate(GenerateReqInput(text="one"))))
        await asyncio.sleep(0)
        rig.manager.end("bye")
        assert (await task)[-1].finish_reason.message == "bye"
        with pytest.raises(EngineUnavailable):
            await collect(inside.generate(GenerateReqInput(text="two")))
        with pytest.raises(EngineUnavailable):
            await inside.embed([[1]])
    await rig.manager.wait_idle()


async def test_a_group_gets_no_further_than_its_engine(rig):
    with rig.manager.together() as inside:
        rig.manager.detach("restarting")
        with pytest.raises(EngineUnavailable):
            await collect(inside.generate(GenerateReqInput(text="two")))


async def test_fail_all_tells_the_engine(rig):
    task, rid = await rig.start()
    rig.manager.fail_all("bye")
    assert (await task)[-1].finish_reason.message == "bye"
    assert rig.aborts == [rid]


async def test_a_suspect_engine_takes_no_requests_until_it_answers(rig):
    rig.manager.suspect()
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.manager.open()
    await rig.start()
    rig.manager.detach("dead")


# ---------------------------------------------------------------- the queue


async def test_the_queue_is_bounded_in_requests():
    rig = Rig(max_queued_requests=3)
    tasks = [(await rig.start())[0] for _ in range(3)]
    with pytest.raises(EngineUnavailable) as caught:
        await collect(rig.generate())
    assert (caught.value.status, caught.value.retry_after) == (503, 1.0)
    rig.row(rig.requests[0].rid, "started")
    task, _ = await rig.start()
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.manager.detach("dead")
    await asyncio.gather(task, *tasks)
    assert rig.manager._admission.requests == rig.manager._admission.tokens == 0


async def test_the_queue_is_bounded_in_tokens():
    rig = Rig(max_queued_tokens=100)
    task, rid = await rig.start("x" * 500)  # an empty queue takes any request
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate("y"))
    rig.row(rid, "started")
    other, _ = await rig.start("y" * 60)
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate("z" * 60))
    rig.manager.detach("dead")
    await asyncio.gather(task, other)
    assert rig.manager._admission.requests == rig.manager._admission.tokens == 0


async def test_no_one_waits_for_a_row_where_the_queue_may_take_no_time():
    rig = Rig(max_queue_time=0.0)
    tasks = [(await rig.start())[0] for _ in range(INFO.max_running_requests)]
    with pytest.raises(EngineUnavailable) as caught:
        await collect(rig.generate())
    assert caught.value.status == 503
    rig.row(rig.requests[0].rid, "started")
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.row(rig.requests[0].rid, "", END)
    task, _ = await rig.start()  # its row is free, whether or not somebody has read the answer
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate())
    rig.manager.detach("dead")
    await asyncio.gather(task, *tasks)
    assert rig.manager._admission.inside == 0


async def test_an_answer_of_many_requests_is_refused_as_a_whole_or_not_at_all():
    rig = Rig(max_queue_time=0.0)
    with rig.manager.together() as inside:
        tasks = [asyncio.create_task(collect(inside.generate(GenerateReqInput(text="x")))) for _ in range(9)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(rig.requests) == 9
        with pytest.raises(EngineUnavailable), rig.manager.together():
            pass
        rig.manager.detach("dead")
        await asyncio.gather(*tasks)
    await rig.manager.wait_idle()


async def test_in_a_flood_those_that_wait_are_told_and_aborted_and_those_that_run_are_not(rig):
    rows = INFO.max_running_requests
    running = [(await rig.start())[0] for _ in range(rows)]
    for request in rig.requests:
        rig.row(request.rid, "started")
    with rig.manager.together() as inside:
        group = asyncio.create_task(collect(inside.generate(GenerateReqInput(text="part of an answer"))))
        waiting = [(await rig.start(n=n))[0] for n in (1, 3)]
        rig.manager._admission._flood.now = True
        for _ in range(2):  # an arrival sends away a few
            with pytest.raises(EngineUnavailable):
                await collect(rig.generate())
        for task in waiting:
            with pytest.raises(EngineUnavailable) as caught:
                await task
            assert (caught.value.status, caught.value.retry_after >= 1) == (503, True)
        assert sorted(rig.aborts) == sorted(request.rid for request in rig.requests[-4:])
        assert not any(task.done() for task in (group, *running))
        rig.manager.detach("dead")
        await asyncio.gather(group, *running)
    assert (rig.manager._admission.inside, rig.manager._admission.requests, rig.manager.num_requests) == (0, 0, 0)


async def test_n_counts_as_n():
    rig = Rig(max_queued_requests=5)
    task, _ = await rig.start(n=4)
    with pytest.raises(EngineUnavailable):
        await collect(rig.generate(n=2))
    rig.manager.detach("dead")
    await task


async def test_whatever_ends_a_request_gives_its_place_back(rig):
    for _ in range(3):
        with pytest.raises(EngineError):
            await collect(rig.generate("x" * 950))
        task, rid = await rig.start(n=2)
        rig.row(rid, "", FinishReason(type="error", message="no", status=500))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert rig.manager._admission.requests == rig.manager._admission.tokens == 0


# ---------------------------------------------------------------- control messages


async def test_embed_flush_and_stats(rig):
    asked = asyncio.create_task(rig.manager.embed([[1, 2], [3]], tenant="t"))
    await asyncio.sleep(0)
    first, second = rig.sent
    assert isinstance(first, EmbedReqInput)
    assert (first.tenant, second.input_ids) == ("t", (3,))
    rig.manager.receive(EmbedOut(rid=second.rid, embedding=(2.0,), prompt_tokens=1))
    rig.manager.receive(EmbedOut(rid=first.rid, embedding=(1.0,), prompt_tokens=2))
    assert await asked == [(1.0,), (2.0,)]
    asked = asyncio.create_task(rig.manager.flush_cache())
    await asyncio.sleep(0)
    assert isinstance(rig.sent[-1], FlushCacheReq)
    rig.manager.receive(ControlReply(rid=rig.sent[-1].rid, ok=False, message="busy"))
    assert await asked is False
    asked = asyncio.create_task(rig.manager.stats())
    await asyncio.sleep(0)
    assert isinstance(rig.sent[-1], StatsReq)
    rig.manager.receive(SchedulerStats(rid=rig.sent[-1].rid, step=9))
    assert (await asked).step == 9
    rig.manager.receive(SchedulerStats(step=10))
    rig.manager.detach("restarting")
    assert (await rig.manager.stats()).step == 10, "what an engine that is away said last"


async def test_what_the_engine_says_of_its_memory_bounds_the_queue(rig):
    stacks = [rig.manager._admission.enter(1) for _ in range(3)]
    with ExitStack() as stack:
        for entered in stacks:
            stack.enter_context(entered)
        assert rig.manager._admission.wait(1) == 0
        rig.manager.receive(SchedulerStats(running=3, waiting=1, memory_full=True))
        assert rig.manager._admission.wait(1) > 0


async def test_a_refused_embedding_is_an_error_and_the_others_are_aborted(rig):
    asked = asyncio.create_task(rig.manager.embed([[1, 2], [3]]))
    await asyncio.sleep(0)
    first, second = rig.sent
    rig.row(first.rid, "", FinishReason(type="error", message="too much", status=400))
    with pytest.raises(EngineError, match="too much") as caught:
        await asked
    assert caught.value.status == 400
    assert second.rid in rig.aborts


async def test_control_messages_fail_with_the_engine(rig):
    asked = asyncio.create_task(rig.manager.embed([[1, 2], [3]]))
    await asyncio.sleep(0)
    rig.manager.detach("restarting")
    with pytest.raises(EngineUnavailable):
        await asked
    assert (await rig.manager.stats()).step == 0
    with pytest.raises(EngineUnavailable):
        await rig.manager.flush_cache()


@pytest.mark.parametrize("ask", [lambda m: m.embed([[1]]), lambda m: m.flush_cache(), lambda m: collect_text(m)])
async def test_an_engine_that_reads_nothing_takes_no_requests(rig, ask):
    def blocked(message):
        raise PipeBlocked

    rig.manager.attach(INFO, blocked)
    with pytest.raises(EngineUnavailable, match="does not take requests"):
        await ask(rig.manager)
    assert (await rig.manager.stats()).step == 0
    assert rig.manager.num_requests == 0


def collect_text(manager):
    return collect(manager.generate(GenerateReqInput(text="hi")))


async def test_embeddings_are_checked_first(rig):
    for bad in ([[]], [[VOCAB_SIZE]], [[1] * 901]):
        with pytest.raises(EngineError):
            await rig.manager.embed(bad)
    assert rig.sent == []


async def test_before_the_first_handshake_nothing_is_known():
    manager = TokenizerManager(EngineConfig(model="hash-lm"), ByteTokenizer())
    assert manager.state == "starting"
    with pytest.raises(EngineUnavailable):
        _ = manager.model_info
    with pytest.raises(EngineUnavailable):
        await collect(manager.generate(GenerateReqInput(text="x")))


async def test_self_test_is_one_token_through_the_pipe(rig):
    asked = asyncio.create_task(rig.manager.self_test(1.0))
    await asyncio.sleep(0)
    (sent,) = rig.requests
    assert (len(sent.input_ids), sent.sampling.max_tokens) == (1, 1)
    rig.row(sent.rid, "x", END)
    assert await asked is True
    assert await rig.manager.self_test(0.01) is False
    assert rig.manager.num_requests == 0
