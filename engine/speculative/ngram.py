"""Drafts by prompt lookup: what followed the last time the sequence ended like this (Saxena, 2023; Yang et al.,
2023, LLMA). No draft model; agents that copy code and JSON from their context gain most."""

from __future__ import annotations

from collections.abc import Sequence

MIN_MATCH = 2
MAX_MATCH = 4
MAX_CANDIDATES = 16
MAX_INDEXED = 16_384
"""Tokens of a long prompt that are indexed: its end. Bounds memory to a few megabytes per request."""
FIRST_PAUSE = 8
MAX_PAUSE = 256


class NgramIndex:
    """Earlier places of every pair of tokens, newest first, grown one token at a time in O(1)."""

    __slots__ = ("_last", "_previous", "_tokens", "size")

    def __init__(self, tokens: list[int]) -> None:
        """``tokens`` is the sequence itself, which the owner goes on appending to."""
        self._tokens = tokens
        self._last: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self.size = max(MIN_MATCH, len(tokens) - MAX_INDEXED)

    def update(self) -> None:
        """Index pairs that are followed by a token; the pair at the very end is what ``find`` asks for."""
        tokens, last, previous = self._tokens, self._last, self._previous
        for index in range(self.size, len(tokens)):
            pair = (tokens[index - 2] << 32) | tokens[index - 1]
            before = last.get(pair)
            if before is not None:
                previous[index] = before
            last[pair] = index
        self.size = max(self.size, len(tokens))

    def find(self) -> int:
        """Where the best earlier match of the sequence's end continues: longest match (up to MAX_MATCH), then
        newest; -1 where even the last two tokens are new."""
        tokens = self._tokens
        end = len(tokens)
        if end < MIN_MATCH:
            return -1
        place = self._last.get((tokens[-2] << 32) | tokens[-1])
        best, best_length = -1, 0
        for _ in range(MAX_CANDIDATES):
            if place is None:
                break
            length = MIN_MATCH
            while length < MAX_MATCH and place > length and tokens[place - length - 1] == tokens[end - length - 1]:
                length += 1
            if length > best_length:
                best, best_length = place, length
                if length == MAX_MATCH:
                    break
            place = self._previous.get(place)
        return best


class NgramDrafter:
    """One request's drafts. Their length follows what pays: it doubles while all are accepted, shrinks to what was
    accepted otherwise, and after a total miss drafting pauses, twice as long each time."""

    __slots__ = ("_index", "_length", "_max_length", "_pause", "_resume_at", "_tokens")

    def __init__(self, tokens: list[int], max_length: int) -> None:
        self._tokens = tokens
        self._index = NgramIndex(tokens)
        self._max_length = max_length
        self._length = max_length
        self._pause = FIRST_PAUSE
        self._resume_at = 0

    def propose(self, limit: int) -> tuple[int, ...]:
        """Up to ``limit`` guesses of what follows the last token. A match that runs into the sequence's end
        continues with the guesses themselves (a loop is predicted whole)."""
        count = min(limit, self._length)
        if count <= 0 or len(self._tokens) < self._resume_at:
            return ()
        self._index.update()
        place = self._index.find()
        if place < 0:
            return ()
        draft: list[int] = []
        tokens, size = self._tokens, len(self._tokens)
        for index in range(place, place + count):
            draft.append(tokens[index] if index < size else draft[index - size])
        return tuple(draft)

    def feedback(self, drafted: int, accepted: int) -> None:
        """Learn from a verification of ``drafted`` > 0 guesses."""
        if accepted == drafted:
            self._length = min(self._max_length, 2 * max(drafted, self._length))
            self._pause = FIRST_PAUSE
        elif accepted:
            self._length = accepted + 1
            self._pause = FIRST_PAUSE
        elif self._length > 1:
            self._length //= 2
        else:
            self._resume_at = len(self._tokens) + self._pause
            self._pause = min(MAX_PAUSE, 2 * self._pause)


def acceptance(draft: Sequence[int], tokens: Sequence[int]) -> int:
    """How many guesses stand, given the verified ``tokens`` (accepted guesses and one more)."""
    accepted = len(tokens) - 1
    if not 0 <= accepted <= len(draft) or tuple(draft[:accepted]) != tuple(tokens[:accepted]):
        raise ValueError("the verified tokens contradict the draft")
    return accepted
