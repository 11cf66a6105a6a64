from __future__ import annotations

import pytest

from engine.speculative.acceptance import Acceptance, num_accepted
from engine.speculative.drafter import Draft, Drafter


def drafter_of(tokens: list[int], max_length: int = 4, seen: Acceptance | None = None) -> Drafter:
    return Drafter(tokens, max_length, seen or Acceptance())


def test_draft_is_what_followed_last_time():
    draft = drafter_of([1, 2, 3, 4, 5, 6, 9, 2, 3]).propose()
    assert draft.tokens == (4, 5, 6, 9)
    assert draft.cut(2) == Draft((4, 5), draft.chances[:2])
    assert draft.cut(0) == Draft()


def test_longer_match_wins_over_newer_one():
    assert drafter_of([1, 2, 3, 70, 0, 2, 3, 80, 1, 2, 3], 1).propose().tokens == (70,)


def test_one_token_is_a_match_where_two_are_not():
    assert drafter_of([8, 3, 70, 80, 5, 3], 2).propose().tokens == (70, 80)


def test_a_loop_is_predicted_beyond_the_end():
    assert drafter_of([5, 6, 7, 5, 6, 7, 5, 6, 7], 8).propose().tokens == (5, 6, 7, 5, 6, 7, 5, 6)


def test_nothing_to_go_by():
    assert drafter_of([1]).propose() == Draft()
    assert drafter_of([1, 2, 3, 4]).propose() == Draft()


def test_each_guess_stands_less_often_than_the_one_before():
    chances = drafter_of([1, 2, 3, 4, 5, 6, 9, 2, 3]).propose().chances
    assert 0 < chances[3] < chances[2] < chances[1] < chances[0] < 1


@pytest.mark.parametrize("used", [0, 1, 4], ids=["nothing drafted", "one drafted", "all drafted"])
def test_chances_follow_what_came_whether_it_was_drafted_or_not(used):
    copy = list(range(100, 300))
    tokens = [*copy, 7, 100, 101]
    drafter = drafter_of(tokens)
    first = drafter.propose().chances[0]
    at = 102
    for _ in range(20):
        tokens += range(at, at + used + 1)
        at += used + 1
        drafter.propose()
    sure = drafter.propose().chances
    assert sure[0] > 0.9 > first
    assert sure[3] > 0.75
    for token in range(1000, 1060):
        tokens += copy[:9]
        drafter.propose()
        tokens.append(token)
    tokens += copy[:9]
    assert drafter.propose().chances[0] < 0.25


def test_a_new_request_expects_what_others_saw():
    seen = Acceptance()
    tokens = [1, 2] * 10
    drafter = drafter_of(tokens, 4, seen)
    for step in range(100):
        drafter.propose()
        tokens.append(1 + step % 2)
    assert drafter_of([1, 2] * 10, 4, seen).propose().chances[0] > 0.9
    assert drafter_of([1, 2] * 10, 4).propose().chances[0] < 0.9


def test_what_was_verified_must_agree_with_the_draft():
    assert num_accepted((1, 2, 3), (1, 2, 9)) == 2
    assert num_accepted((), (5,)) == 0
    with pytest.raises(ValueError, match="contradict"):
        num_accepted((1, 2), (2, 3))
    with pytest.raises(ValueError, match="contradict"):
        num_accepted((1,), ())


def test_the_likeliest_first_guess_is_drafted():
    tokens = [1, 2, 3, 4, 5, 9, 3]  # 3 was followed by 4: one token matches
    drafter = drafter_of(tokens)
    drafter.hint(70, 0.9)
    draft = drafter.propose()
    assert draft.tokens == (70,)
    assert draft.from_head
    drafter.hint(70, 0.01)
    draft = drafter.propose()
    assert draft.tokens[0] == 4
    assert not draft.from_head


def test_a_hint_is_for_the_next_token_alone():
    tokens = [1, 2, 3]
    drafter = drafter_of(tokens)
    drafter.hint(70, 0.9)
    assert drafter.propose().tokens == (70,)
    tokens.append(4)
    assert drafter.propose().tokens == ()


def test_a_hint_does_not_count_behind_tokens_that_were_forced():
    tokens = [1, 2, 3]
    drafter = drafter_of(tokens)
    drafter.hint(70, 0.9)
    tokens += [8, 9]
    assert drafter.propose().tokens == ()


def test_guesses_that_agree_are_as_long_as_the_longer_and_as_sure_as_the_surer():
    tokens = [1, 2, 3, 4, 5, 9, 3]
    alone = drafter_of(list(tokens)).propose()
    drafter = drafter_of(list(tokens))
    drafter.hint(4, 0.9)
    draft = drafter.propose()
    assert draft.tokens == alone.tokens == (4, 5, 9, 3)
    assert draft.chances[0] > 2 * alone.chances[0]
    assert draft.chances[3] > alone.chances[3]


def test_a_head_that_is_wrong_where_it_is_sure_is_believed_less():
    tokens = [1, 2]
    drafter = drafter_of(tokens)
    drafter.hint(7, 0.95)
    first = drafter.propose().chances[0]
    for token in range(100, 160):
        tokens.append(token)
        drafter.hint(7, 0.95)
        last = drafter.propose().chances[0]
    assert first > 0.6
    assert last < 0.1
