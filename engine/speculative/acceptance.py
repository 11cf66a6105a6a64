"""What a guess is worth: how often guesses of its kind stood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine.speculative.ngram import MAX_MATCH

_AFTER_MATCH: Final = (0.1, 0.35, 0.45, 0.55, 0.65, 0.7, 0.75, 0.8)
NUM_BUCKETS: Final = 10
OWN: Final = 0
"""Kinds OWN + 0 to OWN + MAX_MATCH - 1: what followed 1 to MAX_MATCH tokens earlier in the sequence itself."""
HISTORY: Final = OWN + MAX_MATCH
"""The same in what other requests wrote."""
HEAD: Final = HISTORY + MAX_MATCH
"""NUM_BUCKETS kinds for the guess of a draft head, by the probability that it gives."""
PRIOR: Final = (
    *_AFTER_MATCH,
    *_AFTER_MATCH,
    *(0.8 * (bucket + 0.5) / NUM_BUCKETS for bucket in range(NUM_BUCKETS)),
)
"""Chance of a guess of each kind before any was seen: about that of prose and calls of a 0.5B."""


def head_kind(probability: float) -> int:
    """Of a guess to which a draft head gives ``probability``. Raises ValueError where that is no number."""
    return HEAD + min(NUM_BUCKETS - 1, int(probability * NUM_BUCKETS))


class Acceptance:
    """How often a guess of each kind was the token that came, all guesses before it standing.

    Counts fade, so that the last few dozen decide. What a new ``part`` (a request) expects is what the whole has
    seen; its own few counts change that quickly.
    """

    __slots__ = ("_fading", "_hits", "_trials", "_whole")

    WEIGHT = 4.0
    """Trials of one's own that count as much as what was expected."""

    def __init__(self) -> None:
        self._whole: Acceptance | None = None
        self._fading = 0.995
        self._hits = [0.0] * len(PRIOR)
        self._trials = [0.0] * len(PRIOR)

    def part(self) -> Acceptance:
        part = Acceptance()
        part._whole, part._fading = self, 0.9
        return part

    def chance(self, kind: int) -> float:
        """Of a guess of this kind, 0 to 1."""
        expected = PRIOR[kind] if self._whole is None else self._whole.chance(kind)
        return (self._hits[kind] + self.WEIGHT * expected) / (self._trials[kind] + self.WEIGHT)

    def observe(self, kind: int, hit: bool) -> None:
        self._hits[kind] = self._fading * self._hits[kind] + hit
        self._trials[kind] = self._fading * self._trials[kind] + 1.0
        if self._whole is not None:
            self._whole.observe(kind, hit)


def num_accepted(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses stand, given the verified ``tokens`` (accepted guesses and one more)."""
    accepted = len(tokens) - 1
    if not 0 <= accepted <= len(draft) or tuple(draft[:accepted]) != tuple(tokens[:accepted]):
        raise ValueError("the verified tokens contradict the draft")
    return accepted
