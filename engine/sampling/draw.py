"""One token from one row of logits and one uniform number, without sorting the vocabulary where it can be avoided.

Filters in order: temperature, min_p, top_k, top_p (each on what the one before left, renormalised). Entries equal to
the least that a filter keeps are all kept, and the distribution is inverted in order of token ids, so that a GPU's
sampler, which sorts nothing, draws the same tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.sampling.topk import BLOCK, least_of_top

FloatArray = npt.NDArray[np.float32]


def draw(
    row: FloatArray, u: float, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> int:
    """Sample from ``row`` [V] (masked entries are -inf, the maximum is finite) by inverting the distribution at u.

    ``row`` is overwritten: half a megabyte of fresh memory per token would cost more than the arithmetic."""
    if 0 < top_k < len(row):
        indices = np.flatnonzero(row >= least_of_top(row, top_k))
        kept = row[indices]
        weights = _weights(kept, kept.max(), temperature, min_p)
        if top_p >= 1.0:
            return int(indices[_invert(np.cumsum(weights, dtype=np.float64), u)])
        return int(indices[_pick_top_p(weights, u, top_p)])
    weights = _weights(row, row.max(), temperature, min_p)
    return _pick_blockwise(weights, u) if top_p >= 1.0 else _pick_top_p(weights, u, top_p)


def _weights(values: FloatArray, maximum: np.float32, temperature: float, min_p: float) -> FloatArray:
    """exp((values - maximum) / temperature) in place: the best is 1, so nothing overflows."""
    weights = np.subtract(values, maximum, out=values)
    if temperature != 1.0:
        weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    if min_p > 0.0:
        weights[weights < np.float32(min_p)] = 0.0
    return weights


def _pick_top_p(weights: FloatArray, u: float, top_p: float) -> int:
    """Nucleus sampling (Holtzman et al., 2020) in token order; entries equal to the nucleus' least are all in it.

    What is lighter than (1 - top_p) of the mean cannot belong to it, so only the rest is sorted, by value.
    """
    total = float(weights.sum(dtype=np.float64))
    candidates = np.flatnonzero(weights >= np.float32((1.0 - top_p) * total / len(weights) * 0.999))
    heavy = weights[candidates]
    ordered = np.sort(heavy)[::-1]
    size = int(np.searchsorted(np.cumsum(ordered, dtype=np.float64), top_p * total, side="left"))
    least = ordered[min(size, len(ordered) - 1)]
    nucleus = heavy >= least
    return int(candidates[nucleus][_invert(np.cumsum(heavy[nucleus], dtype=np.float64), u)])


def _invert(cumulative: npt.NDArray[np.float64], u: float) -> int:
    """The entry in whose share of the mass u falls; never one without weight."""
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(index, int(np.searchsorted(cumulative, cumulative[-1], side="left")))


def _pick_blockwise(weights: FloatArray, u: float) -> int:
    """Invert the distribution in token order: first the block, then the token, sums in float64."""
    whole = len(weights) // BLOCK * BLOCK
    sums = weights[:whole].reshape(-1, BLOCK).sum(axis=1, dtype=np.float64)
    if whole < len(weights):
        sums = np.append(sums, weights[whole:].sum(dtype=np.float64))
    cumulative = np.cumsum(sums)
    target = u * cumulative[-1]
    block = min(int(np.searchsorted(cumulative, target, side="right")), int(np.flatnonzero(sums)[-1]))
    before = cumulative[block - 1] if block else 0.0
    inside = weights[block * BLOCK : (block + 1) * BLOCK]
    index = int(np.searchsorted(np.cumsum(inside, dtype=np.float64), target - before, side="right"))
    return block * BLOCK + min(index, int(np.flatnonzero(inside)[-1]))
