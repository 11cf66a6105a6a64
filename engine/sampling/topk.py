"""The largest entries of a long row without sorting it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int64]

BLOCK = 256


def block_max(row: FloatArray) -> FloatArray:
    """[ceil(V / BLOCK)] maximum of each block of ``row``, the last block being short."""
    whole = len(row) // BLOCK * BLOCK
    maxima: FloatArray = row[:whole].reshape(-1, BLOCK).max(axis=1)
    if whole < len(row):
        maxima = np.append(maxima, row[whole:].max())
    return maxima


def top_indices(row: FloatArray, count: int) -> IndexArray:
    """Indices of the ``count`` largest entries, best first, equal ones by index."""
    count = min(count, len(row))
    candidates = _candidates(row, count)
    values = row if candidates is None else row[candidates]
    if count < len(values):
        picked = np.argpartition(values, len(values) - count)[len(values) - count :]
    else:
        picked = np.arange(len(values))
    indices = picked if candidates is None else candidates[picked]
    return indices[np.lexsort((indices, -row[indices]))]


def least_of_top(row: FloatArray, count: int) -> np.float32:
    """The least of the ``count`` largest entries, 0 < count <= len(row); nothing is sorted."""
    candidates = _candidates(row, count)
    values = row if candidates is None else row[candidates]
    least: np.float32 = np.partition(values, len(values) - count)[len(values) - count]
    return least


def _candidates(row: FloatArray, count: int) -> IndexArray | None:
    """Indices among which the ``count`` largest entries are, None for all: the k largest lie in the k blocks with the
    largest maxima."""
    blocks = -(-len(row) // BLOCK)
    if count * 4 >= blocks:
        return None
    chosen = np.sort(np.argpartition(block_max(row), blocks - count)[blocks - count :])
    candidates: IndexArray = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
    return candidates[candidates < len(row)] if candidates[-1] >= len(row) else candidates
