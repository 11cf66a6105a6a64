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
    """Indices of the ``count`` largest entries, best first, equal ones by index.

    The k largest entries lie in the k blocks with the largest maxima, so only those are partitioned.
    """
    count = min(count, len(row))
    blocks = -(-len(row) // BLOCK)
    if count * 4 >= blocks:
        candidates = None
        values = row
    else:
        chosen = np.sort(np.argpartition(block_max(row), blocks - count)[blocks - count :])
        candidates = (chosen[:, None] * BLOCK + np.arange(BLOCK)).ravel()
        if candidates[-1] >= len(row):
            candidates = candidates[candidates < len(row)]
        values = row[candidates]
    if count < len(values):
        picked = np.argpartition(values, len(values) - count)[len(values) - count :]
    else:
        picked = np.arange(len(values))
    indices = picked if candidates is None else candidates[picked]
    return indices[np.lexsort((indices, -row[indices]))]
