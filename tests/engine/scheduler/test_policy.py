from __future__ import annotations

from engine.scheduler.policy import MIN_CHUNK, ChunkPolicy, NewTokenRatio
from engine.scheduler.req import Req
from engine.scheduler.scheduler import RETRY_STEPS
from tests.engine.scheduler.harness import Harness, alone


def test_fixed_chunks_without_a_target():
    policy = ChunkPolicy(512)
    policy.observe(512, 4, 9.0)
    assert policy.budget(0) == policy.budget(64) == 512


def test_chunks_shrink_until_mixed_steps_meet_the_target():
    policy = ChunkPolicy(512, target_latency=0.05)
    cost = lambda extra: 0.02 + 0.0005 * extra  # noqa: E731
    for _ in range(50):
        policy.observe(0, 4, cost(0))
        extra = policy.budget(4)
        policy.observe(extra, 4, cost(extra))
    assert cost(policy.budget(4)) <= 0.051
    assert policy.budget(4) >= 50
    assert policy.budget(0) == 512, "nobody waits: full chunks"


def test_chunks_never_shrink_to_nothing():
    policy = ChunkPolicy(512, target_latency=1e-6)
    policy.observe(0, 1, 1.0)
    policy.observe(512, 1, 2.0)
    assert policy.budget(1) == MIN_CHUNK
    assert ChunkPolicy(7).budget(3) == 7


def test_a_target_changes_chunks_and_not_results():
    now = 0.0

    def clock():
        return now

    harness = Harness(pages=200, chunked_prefill_size=256, reads_clock=True, target_latency=0.02)
    harness.scheduler._clock = clock
    inner = harness.executor.inner.execute

    def execute(batch):
        nonlocal now
        now += 0.001 + 0.0002 * batch.num_tokens
        return inner(batch)

    harness.executor.inner.execute = execute
    long = [i % 256 for i in range(2000)]
    harness.add("talker", range(10), max_tokens=60)
    for _ in range(5):
        harness.step()
    harness.add("long", long, max_tokens=3)
    harness.run()
    mixed = [sum(n for _, _, n in shape) for shape in harness.executor.shapes if len(shape) == 2]
    assert max(mixed[3:]) < 120
    assert harness.results["long"].token_ids == alone(long, max_tokens=3)


def test_ratio_sinks_slowly_and_rises_with_preemptions():
    ratio = NewTokenRatio()
    start = ratio.value
    for _ in range(10_000):
        ratio.step()
    assert ratio.value == NewTokenRatio.FLOOR
    for _ in range(100):
        ratio.preempted()
    assert ratio.value == 1.0 > start


def test_reserve_looks_at_what_is_left():
    ratio = NewTokenRatio()
    ratio.value = 0.5
    reqs = [Req("a", [1] * 10, max_len=30), Req("b", [1] * 10, max_len=100_000)]
    assert ratio.reserve(reqs) == (20 + NewTokenRatio.CLIP) // 2


def test_a_prompt_that_was_refused_is_not_matched_again_before_pages_come_free(monkeypatch):
    """Matching a long prompt against the tree costs; the head of the queue would be matched in every step."""
    harness = Harness(pages=20, page_size=4)
    harness.add("first", range(40), max_tokens=24)
    harness.step()
    kv, matched = harness.scheduler.kv, []
    match = kv.match_prefix
    monkeypatch.setattr(
        kv, "match_prefix", lambda tenant, tokens, limit: matched.append(limit) or match(tenant, tokens, limit)
    )
    harness.add("second", range(100, 160), max_tokens=2)
    for _ in range(RETRY_STEPS):
        harness.step()
    assert len(matched) == 1
    harness.run()
    assert 2 <= len(matched) <= 5
    assert harness.results["second"].token_ids == alone(list(range(100, 160)), max_tokens=2)
