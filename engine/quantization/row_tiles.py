"""Rows in tiles of fixed sizes, so that a row's result does not depend on how many rows share its batch.

A matrix library chooses its kernel, and with it the order of its sums, by the number of rows. Here it only ever
sees a few row counts, and each was shown at load time, on this machine, for this very shape, to give every row
the same bits. What cannot be shown equal is not used; one row at a time is equal by construction.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

Multiply = Callable[[torch.Tensor], torch.Tensor]

SIZES = (4, 16, 64, 128)
_BASE = 16
_SEED = 20


def proven_sizes(multiply: Multiply, columns: int, dtype: torch.dtype) -> tuple[int, ...]:
    """The tile sizes of SIZES whose rows are bit-equal, wherever in the tile a row stands; (1,) if none is."""
    generator = torch.Generator().manual_seed(_SEED)
    rows = torch.randn(max(SIZES), columns, generator=generator).to(dtype)
    want = apply_tiled(multiply, rows, (_BASE,))
    few = 2 * _BASE
    shifted = apply_tiled(multiply, torch.roll(rows[:few], 1, 0), (_BASE,))
    if not torch.equal(torch.roll(shifted, -1, 0), want[:few]):
        return (1,)
    proven = []
    for size in SIZES:
        count = max(size, _BASE)
        if size == _BASE or torch.equal(apply_tiled(multiply, rows[:count], (size,)), want[:count]):
            proven.append(size)
    return tuple(proven)


def apply_tiled(multiply: Multiply, x: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """``multiply(x)`` for x [T, in], calling it only with row counts in ``sizes`` (ascending). The last tile is
    filled up with zero rows."""
    total = x.shape[0]
    out: list[torch.Tensor] = []
    start = 0
    while start < total:
        size = _tile(total - start, sizes)
        tile = x[start : start + size]
        if tile.shape[0] < size:
            tile = torch.cat([tile, tile.new_zeros(size - tile.shape[0], x.shape[1])])
        out.append(multiply(tile))
        start += size
    result = out[0] if len(out) == 1 else torch.cat(out)
    return result[:total]


def _tile(remaining: int, sizes: tuple[int, ...]) -> int:
    """The largest tile that ``remaining`` rows fill at least half, else the smallest that holds them."""
    for size in reversed(sizes):
        if size <= 2 * remaining - 1 or size == sizes[0]:
            return size
    raise AssertionError("sizes is never empty")
