"""Where a sequence ended like this before (prompt lookup: Saxena, 2023; Yang et al., 2023, LLMA)."""

from __future__ import annotations

from typing import Final

MAX_MATCH: Final = 8
MAX_CANDIDATES: Final = 16
MAX_INDEXED: Final = 16_384
"""Tokens of a long sequence that are indexed: its end. Bounds memory to a few megabytes per index."""


class NgramIndex:
    """Places of every token and pair of tokens in ``tokens``, grown one token at a time in O(1)."""

    __slots__ = ("_pairs", "_previous", "_singles", "size", "tokens")

    def __init__(self, tokens: list[int]) -> None:
        """``tokens`` is the sequence itself, which the owner goes on appending to."""
        self.tokens = tokens
        self._pairs: dict[int, int] = {}
        self._singles: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self.size = max(2, len(tokens) - MAX_INDEXED)

    def update(self) -> None:
        """Index what is followed by a token; what stands at the very end is what ``find`` may be asked for."""
        tokens, pairs, singles, previous = self.tokens, self._pairs, self._singles, self._previous
        for index in range(self.size, len(tokens)):
            pair = (tokens[index - 2] << 32) | tokens[index - 1]
            before = pairs.get(pair)
            if before is not None:
                previous[index] = before
            pairs[pair] = singles[tokens[index - 1]] = index
        self.size = max(self.size, len(tokens))

    def find(self, sequence: list[int]) -> tuple[int, int]:
        """Where the best match of the end of ``sequence`` continues in ``tokens``, and how many tokens match: most (up
        to MAX_MATCH), then newest; (-1, 0) where even the last token is new. ``sequence`` may be ``tokens`` itself."""
        tokens, end = self.tokens, len(sequence)
        if end < 2:
            return -1, 0
        place: int | None = self._pairs.get((sequence[-2] << 32) | sequence[-1])
        if place is None:
            place = self._singles.get(sequence[-1])
            return (-1, 0) if place is None else (place, 1)
        best, best_length = -1, 0
        for _ in range(MAX_CANDIDATES):
            length, longest = 2, min(MAX_MATCH, place, end)
            while length < longest and tokens[place - length - 1] == sequence[end - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = place, length
            place = self._previous.get(place)
            if place is None or best_length == MAX_MATCH:
                break
        return best, best_length
