"""Drafts by prompt lookup: what followed the last time the sequence ended like this (Saxena, 2023; Yang et al.,
2023, LLMA). No draft model; agents that copy code and JSON from their context gain most."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_MATCH = 8
MAX_CANDIDATES = 16
MAX_INDEXED = 16_384
"""Tokens of a long prompt that are indexed: its end. Bounds memory to a few megabytes per request."""
PRIOR = (0.0, 0.1, 0.35, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8)
"""Chance of the token after a match of so many tokens before any was seen: about that of prose and calls of a 0.5B."""


class NgramIndex:
    """Earlier places of every token and pair of tokens, grown one token at a time in O(1)."""

    __slots__ = ("_pairs", "_previous", "_singles", "_tokens", "size")

    def __init__(self, tokens: list[int]) -> None:
        """``tokens`` is the sequence itself, which the owner goes on appending to."""
        self._tokens = tokens
        self._pairs: dict[int, int] = {}
        self._singles: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self.size = max(2, len(tokens) - MAX_INDEXED)

    def update(self) -> None:
        """Index what is followed by a token; what stands at the very end is what ``find`` asks for."""
        tokens, pairs, singles, previous = self._tokens, self._pairs, self._singles, self._previous
        for index in range(self.size, len(tokens)):
            pair = (tokens[index - 2] << 32) | tokens[index - 1]
            before = pairs.get(pair)
            if before is not None:
                previous[index] = before
            pairs[pair] = singles[tokens[index - 1]] = index
        self.size = max(self.size, len(tokens))

    def find(self) -> tuple[int, int]:
        """Where the best earlier match of the sequence's end continues, and how many tokens match: most (up to
        MAX_MATCH), then newest; (-1, 0) where even the last token is new."""
        tokens = self._tokens
        end = len(tokens)
        if end < 2:
            return -1, 0
        place: int | None = self._pairs.get((tokens[-2] << 32) | tokens[-1])
        if place is None:
            place = self._singles.get(tokens[-1])
            return (-1, 0) if place is None else (place, 1)
        best, best_length = -1, 0
        for _ in range(MAX_CANDIDATES):
            length = 2
            while length < MAX_MATCH and place > length and tokens[place - length - 1] == tokens[end - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = place, length
            place = self._previous.get(place)
            if place is None or best_length == MAX_MATCH:
                break
        return best, best_length


class Acceptance:
    """How often the token after a match of 1 to MAX_MATCH tokens is the one that followed before.

    Counts fade, so that the last few dozen decide. What a new ``part`` (a request) expects is what the whole has
    seen; its own few counts change that quickly.
    """

    __slots__ = ("_fading", "_hits", "_trials", "_whole")

    WEIGHT = 4.0
    """Trials of one's own that count as much as what was expected."""

    def __init__(self) -> None:
        self._whole: Acceptance | None = None
        self._fading = 0.995
        self._hits = [0.0] * (MAX_MATCH + 1)
        self._trials = [0.0] * (MAX_MATCH + 1)

    def part(self) -> Acceptance:
        part = Acceptance()
        part._whole, part._fading = self, 0.9
        return part

    def chance(self, match: int) -> float:
        """Of the token after a match of ``match`` tokens, 0 to 1."""
        expected = PRIOR[match] if self._whole is None else self._whole.chance(match)
        return (self._hits[match] + self.WEIGHT * expected) / (self._trials[match] + self.WEIGHT)

    def observe(self, match: int, hit: bool) -> None:
        self._hits[match] = self._fading * self._hits[match] + hit
        self._trials[match] = self._fading * self._trials[match] + 1.0
        if self._whole is not None:
            self._whole.observe(match, hit)


class Draft(NamedTuple):
    """Guesses of what follows, and for each the chance that it and all before it stand."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()

    def cut(self, length: int) -> Draft:
        """Its first ``length`` guesses."""
        return Draft(self.tokens[:length], self.chances[:length])


class NgramDrafter:
    """One request's drafts. It learns from every token that comes what a guess is worth, drafted or not."""

    __slots__ = ("_acceptance", "_guesses", "_index", "_match", "_max_length", "_size", "_tokens")

    def __init__(self, tokens: list[int], max_length: int, acceptance: Acceptance) -> None:
        """``tokens`` is the sequence itself; ``acceptance`` is what all requests have seen."""
        self._tokens = tokens
        self._index = NgramIndex(tokens)
        self._max_length = max_length
        self._acceptance = acceptance.part()
        self._guesses: list[int] = []
        self._match = self._size = 0

    def propose(self) -> Draft:
        """Up to ``max_length`` guesses of what follows the last token. A match that runs into the sequence's end
        continues with the guesses themselves (a loop is predicted whole)."""
        self._learn()
        self._index.update()
        place, self._match = self._index.find()
        tokens, self._size = self._tokens, len(self._tokens)
        guesses: list[int] = []
        self._guesses = guesses
        if place < 0:
            return Draft()
        chance, chances = 1.0, []
        for offset in range(self._max_length):
            index = place + offset
            guesses.append(tokens[index] if index < self._size else guesses[index - self._size])
            chance *= self._acceptance.chance(min(self._match + offset, MAX_MATCH))
            chances.append(chance)
        return Draft(tuple(guesses), tuple(chances))

    def _learn(self) -> None:
        """Compare the last guesses with what came."""
        for offset, (guess, token) in enumerate(zip(self._guesses, self._tokens[self._size :], strict=False)):
            self._acceptance.observe(min(self._match + offset, MAX_MATCH), guess == token)
            if guess != token:
                return


def acceptance(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses stand, given the verified ``tokens`` (accepted guesses and one more)."""
    accepted = len(tokens) - 1
    if not 0 <= accepted <= len(draft) or tuple(draft[:accepted]) != tuple(tokens[:accepted]):
        raise ValueError("the verified tokens contradict the draft")
    return accepted
