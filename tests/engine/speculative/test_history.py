from __future__ import annotations

import random

from engine.speculative.acceptance import Acceptance
from engine.speculative.drafter import Drafter, Drafters
from engine.speculative.history import END, Histories, History


def continuation(history: History, sequence: list[int], count: int = 4) -> tuple[list[int], int]:
    tokens, place, match = history.find(sequence)
    return (tokens[place : place + count] if match else []), match


def test_an_output_is_found_by_its_beginning_and_by_the_prompts_end():
    history = History()
    history.add([7, 8, 9, 50, 51, 52, 53], prompt_len=3)
    assert continuation(history, [1, 8, 9]) == ([50, 51, 52, 53], 2)
    assert continuation(history, [9, 50, 51]) == ([52, 53, END], 3)
    assert continuation(history, [1, 2, 3]) == ([], 0)


def test_of_a_prompt_its_end_alone_is_kept():
    history = History()
    history.add([*range(100, 200), 1, 2, 3], prompt_len=100)
    assert continuation(history, [110, 111])[1] == 0
    assert continuation(history, [198, 199])[0][:3] == [1, 2, 3]


def test_the_longest_match_wins_in_old_and_new_outputs_alike():
    history = History()
    history.add([1, 2, 3, 4, 5, 60], prompt_len=0)
    history.add([9, 4, 5, 70], prompt_len=0)
    assert continuation(history, [3, 4, 5], 1) == ([60], 3)
    assert continuation(history, [9, 4, 5], 1) == ([70], 3)
    assert continuation(history, [8, 4, 5], 1) == ([70], 2)


def test_memory_is_bounded_and_the_newest_outputs_stay(monkeypatch):
    monkeypatch.setattr(History, "MAX_TOKENS", 200)
    rng = random.Random(1)
    history, outputs = History(), []
    for index in range(50):
        output = [1000 * index + rng.randrange(900) for _ in range(rng.randrange(1, 500))]
        outputs.append(output)
        history.add(output, prompt_len=0)
        held = len(history._newer.tokens) + (len(history._older.tokens) if history._older else 0)
        assert held <= 2 * 201
        if len(output) >= 5:
            assert continuation(history, output[-5:-1], 1)[0] == output[-1:]
    assert continuation(history, outputs[0][:3])[1] == 0


def test_a_longer_match_in_the_older_half_comes_first(monkeypatch):
    monkeypatch.setattr(History, "MAX_TOKENS", 10)
    history = History()
    history.add([1, 2, 3, 4, 5, 60, 7, 8], prompt_len=0)
    history.add([9, 4, 5, 70, 11, 12, 13, 14], prompt_len=0)
    assert history._older is not None
    assert continuation(history, [2, 3, 4, 5], 1) == ([60], 4)
    assert continuation(history, [9, 4, 5], 1) == ([70], 3)


def test_tenants_never_meet(monkeypatch):
    drafters = Drafters(4)
    secret = list(range(500, 540))
    drafters.finished(secret, 0, "alice")
    assert drafters.new(secret[:10], "alice").propose().tokens == tuple(secret[10:14])
    assert drafters.new(secret[:10], "bob").propose().tokens == ()
    assert drafters.new(secret[:10], "").propose().tokens == ()


def test_flushing_forgets_what_was_written():
    drafters = Drafters(4)
    drafters.finished([1, 2, 3, 4, 5], 0, "")
    assert drafters.new([1, 2, 3], "").propose().tokens == (4, 5)
    drafters.forget()
    assert drafters.new([1, 2, 3], "").propose().tokens == ()


def test_nothing_is_drafted_where_no_length_is_given():
    drafters = Drafters(0)
    drafters.finished([1, 2, 3, 4, 5], 0, "")
    assert drafters.new([1, 2, 3], "") is None
    assert not drafters.wants_guesses([True])


def test_tenants_that_wrote_last_are_remembered(monkeypatch):
    monkeypatch.setattr(Histories, "MAX_TENANTS", 2)
    histories = Histories()
    for tenant in ("a", "b", "a", "c"):
        histories.get(tenant).add([1, 2, 3], 0)
    assert histories.get("a").find([1, 2])[2] == 2
    assert histories.get("b").find([1, 2])[2] == 0


def test_what_others_wrote_is_a_guess_where_the_sequence_itself_has_none():
    history = History()
    history.add([5, 6, 7, 8, 9, 10], prompt_len=0)
    assert Drafter([1, 5, 6, 7], 2, Acceptance(), history).propose().tokens == (8, 9)
    assert Drafter([1, 5, 6, 7], 4, Acceptance(), history).propose().tokens == (8, 9, 10)
    own_is_longer = [4, 5, 6, 7, 30, 4, 5, 6, 7]
    assert Drafter(own_is_longer, 1, Acceptance(), history).propose().tokens == (30,)


def test_history_that_misleads_is_believed_less():
    history = History()
    history.add(list(range(100, 300)), prompt_len=0)
    tokens = [1, 101]
    drafter = Drafter(tokens, 1, Acceptance(), history)
    first = drafter.propose()
    assert first.tokens == (102,)
    for token in range(103, 160):
        tokens += [9_000 + token, token]
        last = drafter.propose()
        assert last.tokens == (token + 1,)
    assert last.chances[0] < first.chances[0] / 2


def test_an_end_is_never_guessed():
    history = History()
    for length in range(1, 8):
        history.add(list(range(10 * length, 10 * length + length)), prompt_len=0)
    for length in range(1, 8):
        for end in range(1, length + 1):
            sequence = list(range(10 * length, 10 * length + end))
            guesses = Drafter([0, *sequence], 8, Acceptance(), history).propose().tokens
            assert END not in guesses
            assert guesses in ((), tuple(range(10 * length + end, 10 * length + length)))
