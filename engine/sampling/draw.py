"""One token from one row of logits and one uniform number, without sorting the vocabulary where it can be avoided.

Filters in order: temperature, min_p, top_k, top_p (each on what the one before left, renormalised).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from engine.sampling.topk import BLOCK, top_indices

FloatArray = npt.NDArray[np.float32]
LEVELS = (128, 4096)
"""How many candidates a top_p nucleus is looked for in, before the whole row is sorted."""


def draw(
    row: FloatArray, u: float, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> int:
    """Sample from ``row`` [V] (masked entries are -inf, the maximum is finite) by inverting the distribution at u."""
    if 0 < top_k < len(row):
        indices = top_indices(row, top_k)
        cumulative = np.cumsum(_weights(row[indices], row[indices[0]], temperature, min_p), dtype=np.float64)
        return int(indices[_pick_nucleus(cumulative, u, top_p, None)])
    weights = _weights(row, row.max(), temperature, min_p)
    if top_p >= 1.0:
        return _pick_blockwise(weights, u)
    total = float(weights.sum(dtype=np.float64))
    for level in LEVELS:
        if level < len(row):
            indices = top_indices(row, level)
            cumulative = np.cumsum(weights[indices], dtype=np.float64)
            if cumulative[-1] >= top_p * total:
                return int(indices[_pick_nucleus(cumulative, u, top_p, total)])
    indices = np.argsort(-weights, kind="stable")
    return int(indices[_pick_nucleus(np.cumsum(weights[indices], dtype=np.float64), u, top_p, total)])


def _weights(values: FloatArray, maximum: np.float32, temperature: float, min_p: float) -> FloatArray:
    """exp((values - maximum) / temperature): the best is 1, so nothing overflows (RELIABILITY H21)."""
    weights = values - maximum
    if temperature != 1.0:
        weights /= np.float32(temperature)
    np.exp(weights, out=weights)
    if min_p > 0.0:
        weights[weights < np.float32(min_p)] = 0.0
    return weights


def _pick_nucleus(cumulative: npt.NDArray[np.float64], u: float, top_p: float, total: float | None) -> int:
    """Index into weights sorted downwards: the least set whose share reaches ``top_p``, then u within it."""
    whole = cumulative[-1] if total is None else total
    size = min(int(np.searchsorted(cumulative, top_p * whole, side="left")) + 1, len(cumulative))
    mass = cumulative[size - 1]
    index = int(np.searchsorted(cumulative[:size], u * mass, side="right"))
    return min(index, int(np.searchsorted(cumulative[:size], mass, side="left")))


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
