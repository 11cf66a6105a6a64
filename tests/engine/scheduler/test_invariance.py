"""What a request gets does not depend on how it was computed."""

from __future__ import annotations

import pytest

from engine.scheduler.policy import NewTokenRatio
from tests.engine.scale import scaled
from tests.engine.scheduler.harness import Harness, alone, prompts

CHUNKS = [1, 7, 16, 64, 1 << 20]
MIX = [
    {},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "top_p": 0.9, "seed": 3, "frequency_penalty": 0.5},
    {"temperature": 1.0, "top_k": 9, "seed": -5, "logprobs": True, "top_logprobs": 3},
]


@pytest.fixture(scope="module")
def workload():
    """(prompt, sampling, expected) with every prompt run alone once."""
    work = []
    for index, prompt in enumerate(prompts(scaled(24), seed=4)):
        sampling = {"max_tokens": 6 + index % 20, **MIX[index % len(MIX)]}
        work.append((prompt, sampling, alone(prompt, **sampling)))
    return work


def check(harness: Harness, workload) -> None:
    for index, (prompt, sampling, _) in enumerate(workload):
        harness.add(str(index), prompt, **sampling)
    results = harness.run()
    wrong = [rid for rid, result in results.items() if result.token_ids != workload[int(rid)][2]]
    assert wrong == []
    assert len(results) == len(workload)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunk_and_page_sizes(workload, chunk, page_size):
    check(Harness(pages=8192 // page_size, page_size=page_size, chunked_prefill_size=chunk), workload)


@pytest.mark.parametrize(
    "config", [{"enable_prefix_cache": False}, {"num_draft_tokens": 4}, {"max_running_requests": 1}]
)
def test_cache_drafts_and_concurrency(workload, config):
    harness = Harness(pages=1024, page_size=8, **config)
    check(harness, workload)
    if config.get("enable_prefix_cache", True):
        harness.results.clear()
        check(harness, workload)  # hot


def test_drafts_are_made_and_accepted_without_changing_anything():
    """A repetitive model (strong bias to two letters) gives drafts something to win."""
    sampling = {"logit_bias": {97: 30.0, 98: 30.0}, "max_tokens": 120, "temperature": 0.2, "seed": 1}
    work = [(prompt, sampling, alone(prompt, **sampling)) for prompt in prompts(6, seed=2)]
    harness = Harness(num_draft_tokens=8)
    check(harness, work)
    stats = harness.scheduler.stats()
    assert stats.draft_tokens > 50
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert stats.generated_tokens == 6 * 120
    assert harness.scheduler.num_steps < 6 * 120


@pytest.fixture(scope="module")
def crowd():
    work = []
    for index, prompt in enumerate(prompts(200, seed=11, low=20, high=60, shared=16)):
        sampling = {"max_tokens": 30 + index % 50, **MIX[index % len(MIX)]}
        work.append((prompt, sampling, alone(prompt, **sampling)))
    return work


@pytest.mark.parametrize("drafts", [0, 3])
def test_pool_overcommitted_fourfold(monkeypatch, crowd, drafts):
    """R7: at least 100 preemptions, everything finishes with the uncontended tokens, nobody starves. Admission
    keeps nothing back here, so that memory does run out."""
    monkeypatch.setattr(NewTokenRatio, "reserve", lambda self, running: 0)
    work = crowd
    demand = sum(-(-(len(prompt) + len(want)) // 4) for prompt, _, want in work[:64])
    harness = Harness(pages=demand // 4, page_size=4, chunked_prefill_size=128, num_draft_tokens=drafts)
    worst = 0
    for index, (prompt, sampling, _) in enumerate(work):
        harness.add(str(index), prompt, **sampling)
    started: dict[str, int] = {}
    while harness.scheduler.has_work():
        harness.step()
        for req in harness.scheduler.running:
            worst = max(worst, req.preemptions)
            started.setdefault(req.rid, len(started))
    harness.idle()
    assert all(harness.results[str(i)].token_ids == want for i, (_, _, want) in enumerate(work))
    preemptions = harness.scheduler.stats().preemptions
    inversion = max(int(rid) - place for rid, place in started.items())
    print(f"preemptions: {preemptions}, most of one request: {worst}, start inversion: {inversion}")
    assert preemptions >= 100
    assert worst <= 8
    assert inversion <= 64


@pytest.mark.parametrize("moment", range(0, 50, 7))
def test_preempted_at_any_step(workload, moment):
    """N5: at one step everything that runs loses its pages."""
    harness = Harness(pages=1024, page_size=8, chunked_prefill_size=32, num_draft_tokens=3)
    for index, (prompt, sampling, _) in enumerate(workload):
        harness.add(str(index), prompt, **sampling)
    for _ in range(moment):
        harness.step()
    for req in list(harness.scheduler.running):
        harness.scheduler._preempt(req)
    assert harness.scheduler.kv.num_leases == 0
    harness.scheduler.kv.flush()
    harness.run()
    assert [harness.results[str(i)].token_ids for i in range(len(workload))] == [want for _, _, want in workload]


def test_prompt_logprobs_survive_preemption():
    prompt = [i % 256 for i in range(100)]
    harness = Harness(chunked_prefill_size=16)
    harness.add("a", prompt, prompt_logprobs=True, logprobs=True)
    for _ in range(3):
        harness.step()
    harness.scheduler._preempt(harness.scheduler.running[0])
    result = harness.run()["a"]
    assert [detail.token_id for detail in result.prompt_logprobs] == prompt[1:]


def test_a_request_preempted_too_often_is_protected():
    harness = Harness(pages=16, page_size=4)
    harness.add("victim", range(20), max_tokens=30)
    harness.step()
    req = harness.scheduler.running[0]
    for _ in range(8):
        harness.scheduler._preempt(req)
        harness.step()
    assert req.protected
    assert len(req.lease.pages) * 4 >= req.max_len, "all it can ever need"
    for index in range(6):
        harness.add(f"other{index}", range(30 + index), max_tokens=20)
    results = harness.run()
    assert req.preemptions == 8
    assert results["victim"].token_ids == alone(range(20), max_tokens=30)


def test_a_protected_request_is_no_victim(monkeypatch):
    monkeypatch.setattr(NewTokenRatio, "reserve", lambda self, running: 0)
    harness = Harness(pages=12, page_size=4)
    harness.add("old", range(30), max_tokens=18)
    harness.add("late", range(100, 108), max_tokens=8)
    harness.step()
    old, late = harness.scheduler.running
    late.preemptions = 7
    harness.scheduler._preempt(late)
    results = harness.run()
    assert late.preemptions == 8
    assert old.preemptions > 0
    assert results["old"].token_ids == alone(range(30), max_tokens=18)
    assert results["late"].token_ids == alone(range(100, 108), max_tokens=8)


def test_same_seed_same_tokens_wherever_it_runs():
    """N8: restarts, concurrency 1 and 16, and position in the batch."""
    work = prompts(scaled(40), seed=9, high=30)
    sampling = {"temperature": 1.0, "top_p": 0.95, "max_tokens": 8}
    single = {i: alone(prompt, seed=i, **sampling) for i, prompt in enumerate(work)}
    for order in (list(range(len(work))), list(reversed(range(len(work))))):
        harness = Harness(max_running_requests=16)
        for i in order:
            harness.add(str(i), work[i], seed=i, **sampling)
        harness.run()
        assert {int(rid): tokens for rid, tokens in harness.tokens().items()} == single


def test_without_a_seed_two_requests_differ():
    harness = Harness()
    harness.add("a", range(20), temperature=1.0)
    harness.add("b", range(20), temperature=1.0)
    tokens = harness.run()
    assert tokens["a"].token_ids != tokens["b"].token_ids
