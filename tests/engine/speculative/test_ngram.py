from __future__ import annotations

import random

import pytest

from engine.speculative.ngram import MAX_CANDIDATES, MAX_MATCH, NgramIndex


def find_slowly(tokens: list[int]) -> tuple[int, int]:
    """The longest match of up to MAX_MATCH among the MAX_CANDIDATES newest earlier places of the last pair, else the
    newest place of the last token."""
    places = [i for i in range(len(tokens) - 1, 1, -1) if tokens[i - 2 : i] == tokens[-2:]][:MAX_CANDIDATES]
    best, best_length = -1, 0
    for place in places:
        length = 2
        while length < MAX_MATCH and place > length and tokens[place - length - 1] == tokens[-length - 1]:
            length += 1
        if length > best_length:
            best, best_length = place, length
    singles = [i for i in range(len(tokens) - 1, 1, -1) if tokens[i - 1] == tokens[-1]]
    return (singles[0], 1) if not places and singles else (best, best_length)


@pytest.mark.parametrize("vocab", [2, 5, 40, 300])
def test_the_incremental_index_finds_what_a_scan_finds(vocab):
    rng = random.Random(vocab)
    tokens = [rng.randrange(vocab) for _ in range(30)]
    index = NgramIndex(tokens)
    found = 0
    for _ in range(300):
        index.update()
        got = index.find(tokens)
        assert got == find_slowly(tokens)
        found += got[0] >= 0
        tokens.append(rng.randrange(vocab))
    assert found > 10


def test_long_prompts_are_indexed_at_their_end_only():
    tokens = list(range(40_000))
    index = NgramIndex(tokens)
    index.update()
    tokens += [39_000, 39_001]
    index.update()
    assert index.find(tokens) == (39_002, 2)
    tokens += [5, 6]
    index.update()
    assert index.find(tokens) == (-1, 0)
