"""How many guesses are worth adding to a step: what a step of so many tokens takes, learned from the steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class StepCosts:
    """Seconds of a decode step by its number of tokens.

    Where reading the weights takes the time, further tokens are nearly free; where multiplying does, each costs its
    share. That depends on machine, model and batch, so it is measured. Sizes not seen yet are taken to be cheap, so
    that they are tried, what was seen long ago is slowly believed to be cheaper again, and in the end forgotten.
    """

    MAX_TOKENS = 128
    """Of a step; larger ones get no guesses."""
    PRIOR = 0.1
    """Of a step's fixed cost, what a token adds while nothing has been measured."""
    SMOOTHING = 0.2
    FORGETTING = 0.005
    """Part of a larger step's extra cost that every smaller step takes off."""
    MEMORY = 1000
    """Steps after which a size that was not seen again is forgotten: a step that was held up, by the reading of weights
    or the compiling of kernels, may have been the only one of its size."""
    NEAR = 4
    """A size that was not seen is taken to cost what one smaller by up to this does; beyond, costs are interpolated."""
    MAX_RISE = 1.5
    """One step that was held up by something else counts as no more than this times what was expected."""

    def __init__(self) -> None:
        self._sizes = np.zeros(0, np.int64)
        self._seconds = np.zeros(0)
        self._seen = np.zeros(0, np.int64)
        self._num_steps = 0
        self._curve = [1.0 + self.PRIOR * size for size in range(self.MAX_TOKENS + 1)]

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Learn from a finished step of decoding rows alone in which every token got logits."""
        if not 0 < num_tokens <= self.MAX_TOKENS or seconds <= 0.0:
            return
        self._num_steps += 1
        place = int(np.searchsorted(self._sizes, num_tokens))
        if place < len(self._sizes) and self._sizes[place] == num_tokens:
            old = self._seconds[place]
            self._seconds[place] += self.SMOOTHING * (min(seconds, self.MAX_RISE * old) - old)
        else:
            self._sizes = np.insert(self._sizes, place, num_tokens)
            self._seconds = np.insert(self._seconds, place, seconds)
            self._seen = np.insert(self._seen, place, 0)
        self._seen[place] = self._num_steps
        larger = self._seconds[place + 1 :]
        larger -= self.FORGETTING * np.maximum(larger - self._seconds[place], 0.0)
        self._forget(place)
        self._curve = self._all_sizes().tolist()

    def _forget(self, place: int) -> None:
        """Sizes not seen for long, and smaller ones than that at ``place`` that took far longer."""
        kept = self._seen > self._num_steps - self.MEMORY
        kept[:place] &= self._seconds[:place] <= self.MAX_RISE * self._seconds[place]
        self._sizes, self._seconds, self._seen = self._sizes[kept], self._seconds[kept], self._seen[kept]

    def _all_sizes(self) -> npt.NDArray[np.float64]:
        sizes = np.arange(self.MAX_TOKENS + 1)
        below = np.searchsorted(self._sizes, sizes, side="right") - 1
        near = sizes - self._sizes[below] <= self.NEAR
        curve = np.where(near, self._seconds[below], np.interp(sizes, self._sizes, self._seconds))
        smallest = self._sizes[0]
        curve[:smallest] = self._seconds[0] * sizes[:smallest] / smallest
        return np.maximum.accumulate(curve)

    def draft_length(self, num_tokens: int, expected: float, chances: Sequence[float]) -> int:
        """How many guesses, added to a step of ``num_tokens`` tokens, give most tokens per second.

        expected: tokens that the step gives without them. chances: of each guess, that it and all before it stand.
        """
        best, best_rate = 0, 0.0
        for length in range(min(len(chances), self.MAX_TOKENS - num_tokens) + 1):
            expected += chances[length - 1] if length else 0.0
            rate = expected / self._curve[num_tokens + length]
            if rate > best_rate:
                best, best_rate = length, rate
        return best
