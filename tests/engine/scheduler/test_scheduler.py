from __future__ import annotations

import math
import random
from itertools import accumulate

import pytest

from engine.messages import (
    AbortReq,
    ControlReply,
    EmbedReqInput,
    FlushCacheReq,
    SchedulerStats,
    StatsReq,
)
from engine.scheduler import admission
from engine.text.byte_tokenizer import EOS_ID
from tests.engine.scheduler.harness import Harness, alone, prompts


def test_one_request():
    harness = Harness()
    harness.add("a", range(40), max_tokens=5)
    result = harness.run()["a"]
    assert result.finish.type == "length"
    assert result.token_ids == alone(range(40), max_tokens=5)
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (40, 5, 0)
    assert harness.scheduler.num_steps == 5


def test_idle_step_sends_nothing():
    harness = Harness()
    assert not harness.scheduler.has_work()
    assert harness.step() == []
    assert harness.scheduler.num_steps == 0


def test_cached_tokens_are_whole_pages_short_of_the_last_token():
    harness = Harness(page_size=16)
    prompt = list(range(64))
    harness.add("a", prompt)
    harness.run()
    harness.add("b", prompt)
    harness.add("c", prompt[:40])
    harness.add("d", [*prompt, 1, 2])
    harness.add("e", prompt, tenant="other")
    results = harness.run()
    assert [results[rid].cached_tokens for rid in "bcde"] == [48, 32, 64, 0]
    assert results["b"].token_ids == results["e"].token_ids == results["a"].token_ids


def test_the_output_of_a_turn_is_cached_for_the_next():
    harness = Harness(page_size=4)
    harness.add("a", range(8), max_tokens=13)
    first = harness.run()["a"].token_ids
    harness.add("b", [*range(8), *first, 7, 7], max_tokens=4)
    assert harness.run()["b"].cached_tokens == 20


# ------------------------------------------------------------ refused


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_can_never_fit_is_refused_at_once_and_blocks_nobody(length):
    harness = Harness(pages=4, page_size=16)
    for index in range(5):
        harness.add(f"before{index}", range(30), max_tokens=4)
    harness.step()
    harness.add("big", [1] * length)
    for index in range(5):
        harness.add(f"behind{index}", range(10), max_tokens=4)
    harness.step()
    finish = harness.results["big"].finish
    assert (finish.type, finish.status) == ("error", 400)
    assert finish.message.startswith("This model's maximum context length is 64 tokens.")
    assert all(len(result.token_ids) == 4 for rid, result in harness.run().items() if rid != "big")


def test_context_is_the_smaller_of_model_and_pool():
    harness = Harness(pages=100, page_size=16, max_model_len=50)
    harness.add("a", range(49), max_tokens=100)
    harness.add("b", range(50), max_tokens=1)
    results = harness.run()
    assert (results["a"].finish.type, len(results["a"].token_ids)) == ("length", 1)
    assert results["b"].finish.message.startswith("This model's maximum context length is 50 tokens.")


def test_context_end_is_length():
    harness = Harness(pages=2, page_size=16)
    harness.add("a", range(10), max_tokens=500)
    result = harness.run()["a"]
    assert result.finish.type == "length"
    assert len(result.token_ids) == 22


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], {}),
        ([-1], {}),
        ([262], {}),
        ([2**40], {}),
        ([1], {"temperature": math.nan}),
        ([1], {"top_p": 0.0}),
        ([1], {"top_logprobs": 10**9, "logprobs": True}),
        ([1], {"logit_bias": {262: 1.0}}),
        ([1], {"logit_bias": {-1: 1.0}}),
        ([1], {"stop_token_ids": (9999,)}),
        ([1], {"max_tokens": 0}),
        ([1], {"min_tokens": 10, "max_tokens": 5}),
        ([1], {"presence_penalty": math.inf}),
    ],
)
def test_what_the_edge_should_have_caught_fails_alone(prompt, sampling):
    harness = Harness()
    harness.add("good", range(20))
    harness.add("bad", prompt, **sampling)
    results = harness.run()
    assert (results["bad"].finish.type, results["bad"].finish.status) == ("error", 400)
    assert results["good"].token_ids == alone(range(20))


def test_a_rid_sent_twice_is_one_request():
    harness = Harness()
    harness.add("a", range(20))
    harness.step()
    harness.add("a", range(5))
    assert harness.run()["a"].token_ids == alone(range(20))


# ------------------------------------------------------------ stops


def find_stop(prompt, index: int) -> tuple[int, list[int]]:
    """A token of the free run whose first place is ``index``, and the run."""
    tokens = alone(prompt, max_tokens=30)
    assert tokens.index(tokens[index]) == index
    return tokens[index], tokens


def test_stop_token_ids_end_and_are_delivered():
    token, tokens = find_stop(range(9), 6)
    harness = Harness()
    harness.add("a", range(9), max_tokens=30, stop_token_ids=(token,))
    result = harness.run()["a"]
    assert result.token_ids == tokens[:7]
    assert (result.finish.type, result.finish.matched) == ("stop", token)


def test_eos_ends_unless_ignored():
    eos = next(r for r in ("a",))
    harness = Harness(eos_probability=0.2)
    harness.add(eos, range(9), max_tokens=200)
    harness.add("ignore", range(9), max_tokens=200, ignore_eos=True)
    harness.add("min", range(9), max_tokens=200, min_tokens=150)
    results = harness.run()
    ended = results["a"]
    assert (ended.finish.type, ended.finish.matched) == ("stop", None)
    assert ended.token_ids[-1] == EOS_ID
    assert EOS_ID not in ended.token_ids[:-1]
    assert len(results["ignore"].token_ids) == 200
    assert results["ignore"].token_ids.count(EOS_ID) > 5
    assert EOS_ID not in results["min"].token_ids[:150]
    assert len(results["min"].token_ids) > 150


def test_min_tokens_holds_back_stop_token_ids():
    token, tokens = find_stop(range(9), 3)
    harness = Harness()
    harness.add("a", range(9), max_tokens=30, stop_token_ids=(token,), min_tokens=3)
    harness.add("b", range(9), max_tokens=30, stop_token_ids=(token,), min_tokens=4)
    results = harness.run()
    assert results["a"].token_ids == tokens[:4]
    assert token not in results["b"].token_ids[:4]
    assert len(results["b"].token_ids) > 4


# ------------------------------------------------------------ abort


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("steps", range(12))
def test_abort_at_every_point(steps, drafts):
    """Queued, in prefill, at the first token, while decoding, after the end: one last row, no page lost."""
    harness = Harness(pages=12, page_size=4, chunked_prefill_size=8, max_running_requests=3, num_draft_tokens=drafts)
    work = prompts(5, seed=steps, low=6, high=20, shared=8)
    for index, prompt in enumerate(work):
        harness.add(str(index), prompt, max_tokens=6)
    for _ in range(steps):
        harness.step()
    for index in (1, 3):
        harness.scheduler.add(AbortReq(rid=str(index)))
        harness.scheduler.add(AbortReq(rid=str(index)))
    harness.scheduler.add(AbortReq(rid="nobody"))
    harness.step()
    assert {req.rid for req in [*harness.scheduler.running, *harness.scheduler.waiting]}.isdisjoint({"1", "3"})
    results = harness.run()
    for index, prompt in enumerate(work):
        result, want = results[str(index)], alone(prompt, max_tokens=6)
        if result.finish.type == "abort":
            assert index in (1, 3)
            assert result.token_ids == want[: len(result.token_ids)]
        else:
            assert result.token_ids == want[: len(result.token_ids)]
            assert result.finish.type == "length"


def test_abort_before_the_request_is_accepted():
    harness = Harness()
    harness.add("a", range(20))
    harness.scheduler.add(AbortReq(rid="a"))
    assert harness.run()["a"].finish.type == "abort"
    assert harness.executor.batches == []


def test_a_stop_string_found_by_the_detokenizer_is_stop():
    harness = Harness()
    harness.add("a", range(20), max_tokens=100)
    for _ in range(5):
        harness.step()
    harness.scheduler.add(AbortReq(rid="a", stop_matched="END"))
    harness.scheduler.add(AbortReq(rid="a"))
    finish = harness.run()["a"].finish
    assert (finish.type, finish.matched) == ("stop", "END")


# ------------------------------------------------------------ the rule


def test_a_decode_row_never_waits_for_a_long_prompt():
    harness = Harness(pages=200, chunked_prefill_size=32)
    harness.add("talker", range(10), max_tokens=60)
    harness.step()
    harness.add("long", [i % 256 for i in range(1000)], max_tokens=3)
    harness.run()
    for shape in harness.executor.shapes[1:59]:
        assert shape[0][0] == "talker"
        assert sum(count for _, _, count in shape) <= 32 + 1
    assert harness.results["long"].token_ids == alone([i % 256 for i in range(1000)], max_tokens=3)


def test_first_come_first_served_but_priority_first():
    harness = Harness(max_running_requests=1)
    for rid, priority in (("a", 0), ("b", 0), ("c", 5), ("d", 5)):
        harness.add(rid, range(20), max_tokens=2, priority=priority)
    harness.run()
    order = list(dict.fromkeys(rid for shape in harness.executor.shapes for rid, _, _ in shape))
    assert order == ["c", "d", "a", "b"]


def test_stats_tell_whether_it_is_memory_that_the_next_one_waits_for():
    harness = Harness(pages=8, page_size=4, max_running_requests=2)
    for start, rid in enumerate("abc"):
        harness.add(rid, range(start, start + 5), max_tokens=4)
    harness.step()
    stats = harness.scheduler.stats()
    assert (stats.running, stats.waiting, stats.memory_full) == (2, 1, False), "rows are short"
    harness.run()
    for start, rid in enumerate("de"):
        harness.add(rid, range(100 * start, 100 * start + 24), max_tokens=4)
    harness.step()
    stats = harness.scheduler.stats()
    assert (stats.running, stats.waiting, stats.memory_full) == (1, 1, True)
    harness.run()
    assert not harness.scheduler.stats().memory_full


def test_simultaneous_requests_compute_a_common_prefix_once():
    harness = Harness(pages=512, page_size=16, chunked_prefill_size=256)
    system = [i % 251 for i in range(800)]
    for index in range(8):
        harness.add(str(index), [*system, index, 1, 2, 3, 4], max_tokens=4)
    results = harness.run()
    computed = harness.scheduler.stats().prefill_tokens
    assert computed == 805 + 7 * 5, "800 is a multiple of the page"
    for index in range(8):
        assert results[str(index)].token_ids == alone([*system, index, 1, 2, 3, 4], max_tokens=4)


def test_short_common_beginnings_do_not_delay():
    harness = Harness(page_size=1, chunked_prefill_size=512)
    for index in range(8):
        harness.add(str(index), [1, 2, 3, *range(10 * index, 10 * index + 10)], max_tokens=2)
    harness.step()
    assert len(harness.executor.shapes[0]) == 8


def test_steps_are_deterministic_whatever_they_take():
    def shapes():
        harness = Harness(pages=40, page_size=4, chunked_prefill_size=64, num_draft_tokens=4, target_latency=0.01)
        harness.scheduler._clock = accumulate(iter(random.random, 1.0)).__next__
        for index, prompt in enumerate(prompts(20, high=40)):
            harness.add(str(index), prompt, max_tokens=20, temperature=1.0)
        harness.run()
        return harness.executor.shapes, harness.tokens()

    assert shapes() == shapes()


# ------------------------------------------------------------ control


def test_flush_and_stats():
    harness = Harness(page_size=4)
    harness.add("a", range(20))
    harness.run()
    assert harness.scheduler.stats().cached_pages > 0
    harness.scheduler.add(FlushCacheReq(rid="f"))
    harness.scheduler.add(StatsReq(rid="s"))
    harness.step()
    flush, stats = harness.others
    assert isinstance(flush, ControlReply)
    assert flush.ok
    assert isinstance(stats, SchedulerStats)
    assert (stats.rid, stats.cached_pages, stats.free_pages) == ("s", 0, stats.total_pages)
    assert stats.generated_tokens == 16
    assert stats.prefill_tokens == 20


# ------------------------------------------------------------ embeddings


def test_embedding_is_the_same_in_chunks_and_of_length_one():
    prompt = [i % 256 for i in range(150)]
    found = []
    for chunk in (1000, 64, 7, 1):
        harness = Harness(chunked_prefill_size=chunk)
        harness.add("g", prompt, max_tokens=3)
        harness.run()
        harness.scheduler.add(EmbedReqInput(rid="e", input_ids=tuple(prompt)))
        harness.run()
        found.append(harness.embeddings["e"])
    assert sum(value * value for value in found[0]) == pytest.approx(1.0)
    for vector in found[1:]:
        assert vector == pytest.approx(found[0], abs=1e-12)


def test_embedding_that_fails_ends_with_an_error_row():
    harness = Harness(pages=4, page_size=16)
    harness.scheduler.add(EmbedReqInput(rid="e", input_ids=tuple([1] * 65)))
    harness.scheduler.add(EmbedReqInput(rid="fits", input_ids=tuple([1] * 64)))
    while harness.scheduler.has_work():
        for message in harness.scheduler.step():
            for row in getattr(message, "rows", ()):
                assert (row.rid, row.finish_reason.status) == ("e", 400)
            if hasattr(message, "embedding"):
                assert message.rid == "fits"


# ------------------------------------------------------------ prompt logprobs


@pytest.mark.parametrize("chunk", [5, 64, 1000])
def test_prompt_logprobs_come_once_and_whole(chunk):
    harness = Harness(chunked_prefill_size=chunk)
    prompt = [i % 256 for i in range(150)]
    harness.add("warm", prompt)
    harness.run()
    harness.add("a", prompt, prompt_logprobs=True, logprobs=True, top_logprobs=2, max_tokens=3)
    result = harness.run()["a"]
    assert [detail.token_id for detail in result.prompt_logprobs] == prompt[1:]
    assert all(len(detail.top) == 2 for detail in result.prompt_logprobs)
    assert len(result.logprobs) == len(result.token_ids) == 3
    assert result.cached_tokens == 0
    assert max(count for shape in harness.executor.shapes[-6:] for _, _, count in shape) <= 64


def test_more_prompt_logprobs_than_a_message_takes_are_refused(monkeypatch):
    monkeypatch.setattr(admission, "MAX_PROMPT_LOGPROBS", 90)
    harness = Harness()
    harness.add("many", range(31), prompt_logprobs=True, logprobs=True, top_logprobs=2)
    harness.add("few", range(30), prompt_logprobs=True, logprobs=True, top_logprobs=2)
    results = harness.run()
    assert (results["many"].finish.type, results["many"].finish.status) == ("error", 400)
    assert results["few"].finish.type == "length"


def steps_to_first_token(harness: Harness, rid: str) -> int:
    steps = 0
    while rid not in harness.results or not harness.results[rid].token_ids:
        harness.step()
        steps += 1
    return steps


LONG = [index * 7 % 251 for index in range(4000)]


def behind_a_long_prompt(**config) -> Harness:
    harness = Harness(pages=1024, chunked_prefill_size=64, **config)
    harness.add("long", LONG, max_tokens=3)
    harness.step()
    return harness


def test_a_short_prompt_does_not_wait_for_a_long_one():
    harness = behind_a_long_prompt()
    harness.add("short", range(60), max_tokens=3)
    assert steps_to_first_token(harness, "short") <= 3
    results = harness.run()
    assert results["short"].token_ids == alone(range(60), max_tokens=3)
    assert results["long"].token_ids == alone(LONG, max_tokens=3)


def test_a_long_prompt_with_a_cached_prefix_is_a_short_one():
    harness = Harness(pages=2048, chunked_prefill_size=64)
    turn = list(range(200)) * 12
    harness.add("first turn", turn, max_tokens=3)
    harness.run()
    harness.add("long", LONG, max_tokens=3)
    harness.step()
    harness.add("second turn", [*turn, 1, 2, 3], max_tokens=3)
    assert steps_to_first_token(harness, "second turn") <= 3


def test_short_prompts_take_no_more_than_half_from_a_long_one():
    """However many come: the long one gets on with half of every step."""
    harness = behind_a_long_prompt(max_running_requests=4)
    count = 0
    while harness.scheduler.running[0].rid == "long" and not harness.scheduler.running[0].decoding:
        harness.add(f"short {count}", range(count, count + 50), max_tokens=1)
        count += 1
        harness.step()
    chunks = [size for shape in harness.executor.shapes for rid, _, size in shape if rid == "long"]
    assert min(chunks[:-1]) >= 32
    assert count > 50
    harness.run()


@pytest.mark.parametrize(
    "other", [{"start": 0, "priority": 0}, {"start": 0, "priority": -1}, {"start": 3100, "priority": -1}]
)
def test_who_does_not_overtake(other):
    """A prompt of about the same length, and one of less priority, however short."""
    harness = Harness(pages=1024, chunked_prefill_size=64)
    harness.add("first", LONG, max_tokens=3)
    harness.step()
    harness.add("other", LONG[other["start"] :][::-1], max_tokens=3, priority=other["priority"])
    order = []
    while len(order) < 2:
        harness.step()
        order += [rid for rid in ("first", "other") if rid not in order and rid in harness.results]
    assert order == ["first", "other"]
    harness.run()
