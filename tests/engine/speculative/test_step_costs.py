from __future__ import annotations

import pytest

from engine.speculative.step_costs import StepCosts

LIKELY = [0.9, 0.8, 0.7, 0.6]


def memory_bound(num_tokens: int) -> float:
    """Free up to four tokens, then each costs its share: one stream on two cores."""
    return 0.02 + 0.005 * max(0, num_tokens - 4)


def compute_bound(num_tokens: int) -> float:
    return 0.002 + 0.005 * num_tokens


def learn(costs: StepCosts, machine, num_tokens: int, chances: list[float], steps: int = 60) -> list[int]:
    """Lengths that are chosen one after the other, each paid for."""
    lengths = []
    for _ in range(steps):
        lengths.append(costs.draft_length(num_tokens, float(num_tokens), chances))
        costs.observe(num_tokens + lengths[-1], machine(num_tokens + lengths[-1]))
    return lengths


def rate(machine, num_tokens: int, chances: list[float], lengths: list[int]) -> float:
    """Tokens per second."""
    tokens = sum(num_tokens + sum(chances[:length]) for length in lengths)
    return tokens / sum(machine(num_tokens + length) for length in lengths)


def best_rate(machine, num_tokens: int, chances: list[float]) -> float:
    return max(rate(machine, num_tokens, chances, [length]) for length in range(len(chances) + 1))


def test_unknown_sizes_are_tried():
    costs = StepCosts()
    costs.observe(1, 0.02)
    assert costs.draft_length(1, 1.0, LIKELY) == 4
    assert costs.draft_length(1, 1.0, []) == 0


def test_without_measurements_a_batch_drafts_what_is_likely_and_one_stream_what_may_be():
    costs = StepCosts()
    assert costs.draft_length(1, 1.0, LIKELY) == 4
    assert costs.draft_length(1, 1.0, [0.02]) == 0
    assert costs.draft_length(16, 16.0, [0.9, 0.3]) == 1


@pytest.mark.parametrize("machine", [memory_bound, compute_bound])
@pytest.mark.parametrize("num_tokens", [1, 3, 8, 16, 60])
@pytest.mark.parametrize("chances", [LIKELY, [0.3, 0.1, 0.03, 0.01], [0.99, 0.98, 0.97, 0.96]])
def test_lengths_settle_at_what_gives_most_tokens_per_second(machine, num_tokens, chances):
    lengths = learn(StepCosts(), machine, num_tokens, chances, steps=200)
    assert rate(machine, num_tokens, chances, lengths) > 0.97 * best_rate(machine, num_tokens, chances)


def test_a_step_that_was_held_up_once_changes_little():
    costs = StepCosts()
    for _ in range(20):
        costs.observe(1, 0.02)
        costs.observe(2, 0.02)
    costs.observe(2, 5.0)
    assert costs.draft_length(1, 1.0, [0.3]) == 1


@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("seconds", [0.5, 60.0])
@pytest.mark.parametrize("chances", [[0.3, 0.1, 0.03], LIKELY])
def test_a_slow_first_step_is_forgotten_by_batches_of_any_other_size(size, seconds, chances):
    """The first step after a start reads the weights from disk or compiles kernels; a busy server then has no step
    of that size again."""
    for num_tokens in {1, 4, 16} - {size}:
        costs = StepCosts()
        costs.observe(size, seconds)
        learn(costs, compute_bound, num_tokens, chances, steps=1200)
        lengths = learn(costs, compute_bound, num_tokens, chances, steps=200)
        best = best_rate(compute_bound, num_tokens, chances)
        assert rate(compute_bound, num_tokens, chances, lengths) > 0.93 * best


def test_a_size_that_was_slow_at_first_sight_is_tried_again():
    """A kernel that is compiled for its first batch of two, say."""
    costs = StepCosts()
    for _ in range(20):
        costs.observe(1, 0.02)
    costs.observe(2, 30.0)
    assert 1 in learn(costs, memory_bound, 1, [0.5], steps=1200)
    assert costs.draft_length(1, 1.0, [0.5]) == 1


def test_costs_of_a_bad_moment_are_forgotten():
    costs = StepCosts()
    costs.observe(1, 0.02)
    costs.observe(2, 0.08)
    assert costs.draft_length(1, 1.0, [0.5]) == 0
    assert 1 in learn(costs, lambda n: 0.02, 1, [0.5], steps=500)
    assert costs.draft_length(1, 1.0, [0.5]) == 1


def test_steps_that_took_no_time_or_are_too_large_teach_nothing():
    costs = StepCosts()
    costs.observe(1, 0.0)
    costs.observe(costs.MAX_TOKENS + 1, 9.0)
    assert costs.draft_length(1, 1.0, LIKELY) == 4
    assert costs.draft_length(costs.MAX_TOKENS - 1, 1.0, LIKELY) == 1
    assert costs.draft_length(costs.MAX_TOKENS + 5, 1.0, LIKELY) == 0
