"""Where the kernels run in this process, random inputs, and how near a result must be to its reference."""

from __future__ import annotations

import numpy as np
import torch

from engine.kernels.triton.attention_ref import PagedKV

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (scale * torch.randn(shape, generator=generator)).to(dtype).to(DEVICE)


def assert_near(got: torch.Tensor, expected: torch.Tensor, *, slack: float = 1.0) -> None:
    """Relative to the largest expected value: what rounding in ``got``'s dtype may cost."""
    assert got.shape == expected.shape
    assert got.isfinite().all()
    if not got.numel():
        return
    bound = slack * TOLERANCE[got.dtype] * max(1.0, float(expected.float().abs().max()))
    worst = float((got.float() - expected.float()).abs().max())
    assert worst <= bound, f"{worst} > {bound}"


def paged(
    lengths: list[int], *, kv_heads: int, dim: int, page_size: int, dtype: torch.dtype = torch.float32, seed: int = 0
) -> PagedKV:
    """Sequences on shuffled pages. Slots that belong to nobody hold huge numbers: reading one shows."""
    counts = [-(-length // page_size) for length in lengths]
    total = sum(counts) + 2
    order = np.random.default_rng(seed).permutation(total).tolist()
    table = torch.zeros((len(lengths), max([1, *counts])), dtype=torch.int32)
    keys, values = (randn(total * page_size, kv_heads, dim, dtype=dtype, seed=seed + i) for i in (1, 2))
    used = torch.zeros(total * page_size, dtype=torch.bool)
    for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int32)
        table[row, :count] = pages
        place = torch.arange(length)
        if length:
            used[pages[place // page_size].long() * page_size + place % page_size] = True
    for pool in (keys, values):
        pool[~used.to(DEVICE)] = 30000.0
    return PagedKV(keys, values, table.to(DEVICE), torch.tensor(lengths, dtype=torch.int32, device=DEVICE), page_size)


def bounds(counts: list[int]) -> torch.Tensor:
    return torch.tensor(np.cumsum([0, *counts]), dtype=torch.int32, device=DEVICE)
