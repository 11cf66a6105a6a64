from __future__ import annotations

import random

import pytest

from engine.speculative.ngram import MAX_CANDIDATES, MAX_MATCH, NgramDrafter, NgramIndex, acceptance


def find_slowly(tokens: list[int]) -> int:
    """The longest match of up to MAX_MATCH among the MAX_CANDIDATES newest earlier places of the last pair."""
    places = [i for i in range(len(tokens) - 1, 1, -1) if tokens[i - 2 : i] == tokens[-2:]][:MAX_CANDIDATES]
    best, best_length = -1, 0
    for place in places:
        length = 2
        while length < MAX_MATCH and place > length and tokens[place - length - 1] == tokens[-length - 1]:
            length += 1
        if length > best_length:
            best, best_length = place, length
    return best


@pytest.mark.parametrize("vocab", [2, 5, 40])
def test_the_incremental_index_finds_what_a_scan_finds(vocab):
    rng = random.Random(vocab)
    tokens = [rng.randrange(vocab) for _ in range(30)]
    index = NgramIndex(tokens)
    found = 0
    for _ in range(300):
        index.update()
        got = index.find()
        assert got == find_slowly(tokens)
        found += got >= 0
        tokens.append(rng.randrange(vocab))
    assert found > 10


def test_draft_is_what_followed_last_time():
    drafter = NgramDrafter([1, 2, 3, 4, 5, 6, 9, 2, 3], 4)
    assert drafter.propose(4) == (4, 5, 6, 9)
    assert drafter.propose(2) == (4, 5)
    assert drafter.propose(0) == ()


def test_longer_match_wins_over_newer_one():
    assert NgramDrafter([1, 2, 3, 70, 0, 2, 3, 80, 1, 2, 3], 1).propose(1) == (70,)


def test_a_loop_is_predicted_beyond_the_end():
    assert NgramDrafter([5, 6, 7, 5, 6, 7, 5, 6, 7], 8).propose(8) == (5, 6, 7, 5, 6, 7, 5, 6)


def test_nothing_to_go_by():
    assert NgramDrafter([1], 4).propose(4) == ()
    assert NgramDrafter([1, 2, 3, 4], 4).propose(4) == ()


def test_length_falls_to_zero_when_drafts_fail_and_comes_back_when_they_pay():
    tokens = [1, 2] * 20
    drafter = NgramDrafter(tokens, 4)
    for _ in range(3):
        drafter.feedback(len(drafter.propose(4)), 0)
    assert drafter.propose(4) == (), "it pauses"
    while not (draft := drafter.propose(4)):
        tokens += [1, 2]
    assert len(draft) == 1, "and then tries one"
    drafter.feedback(1, 1)
    assert len(drafter.propose(4)) == 2
    drafter.feedback(2, 2)
    assert len(drafter.propose(4)) == 4


def test_useless_drafts_cost_less_and_less():
    tokens = [1, 2] * 20
    drafter = NgramDrafter(tokens, 4)
    wasted = 0
    for _ in range(1000):
        draft = drafter.propose(4)
        if draft:
            wasted += len(draft)
            drafter.feedback(len(draft), 0)
        tokens.append(1 + len(tokens) % 2)
    assert wasted < 20


def test_partial_acceptance_sets_the_length():
    drafter = NgramDrafter([1, 2] * 20, 8)
    drafter.feedback(8, 3)
    assert len(drafter.propose(8)) == 4


def test_acceptance():
    assert acceptance((1, 2, 3), (1, 2, 9)) == 2
    assert acceptance((), (5,)) == 0
    with pytest.raises(ValueError, match="contradict"):
        acceptance((1, 2), (2, 3))
    with pytest.raises(ValueError, match="contradict"):
        acceptance((1,), ())


def test_long_prompts_are_indexed_at_their_end_only():
    tokens = list(range(40_000))
    index = NgramIndex(tokens)
    index.update()
    tokens += [39_000, 39_001]
    index.update()
    assert index.find() == 39_002
    tokens += [5, 6]
    index.update()
    assert index.find() == -1
