"""Random weights of every type, for the tests of the linear kernels."""

from __future__ import annotations

import numpy as np

from engine.kernels.cpu.build import BuildUnavailable
from engine.kernels.cpu.linear import Context, Format, Isa, Rows, RowsKind, Weight, best_isa, row_bytes

QUANTIZED = (
    Format.Q4_0,
    Format.Q4_1,
    Format.Q5_0,
    Format.Q5_1,
    Format.Q8_0,
    Format.Q4_K,
    Format.Q5_K,
    Format.Q6_K,
)
FLOATS = (Format.F32, Format.F16, Format.BF16)


def _levels() -> tuple[Isa, ...]:
    try:
        return tuple(isa for isa in (Isa.PORTABLE, Isa.AVX2, Isa.AVX512) if isa <= best_isa())
    except BuildUnavailable:  # the torch path serves such machines
        return ()


LEVELS = _levels()
# Where a block's float16 numbers lie.
HALVES = {
    Format.Q4_1: (0, 2),
    Format.Q5_1: (0, 2),
    Format.Q4_K: (0, 2),
    Format.Q5_K: (0, 2),
    Format.Q6_K: (208,),
}


def block_of(fmt: Format) -> int:
    return 256 if fmt in (Format.Q4_K, Format.Q5_K, Format.Q6_K) else 32


def random_weight(fmt: Format, n: int, k: int, seed: int = 0, *, scale: float = 0.02, bias: bool = False) -> Weight:
    """Every code and sub-scale as likely as any other; one float16 scale in eight is zero."""
    rng = np.random.default_rng([seed, int(fmt), n, k])
    b = rng.standard_normal(n).astype(np.float32) if bias else None
    if fmt in FLOATS:
        values = (rng.standard_normal((n, k)) * scale).astype(np.float32)
        if fmt == Format.F16:
            return Weight(fmt, n, k, values.astype(np.float16), b)
        if fmt == Format.BF16:
            return Weight(fmt, n, k, (values.view(np.uint32) >> 16).astype(np.uint16), b)
        return Weight(fmt, n, k, values, b)
    raw = rng.integers(0, 256, (n, row_bytes(fmt, k)), dtype=np.uint8)
    blocks = raw.reshape(n, k // block_of(fmt), row_bytes(fmt, block_of(fmt)))
    for at in HALVES.get(fmt, (0,)):
        halves = (rng.standard_normal(blocks.shape[:2]) * scale).astype(np.float16)
        halves[rng.random(halves.shape) < 0.125] = 0
        blocks[:, :, at : at + 2] = halves[..., None].view(np.uint8)
    return Weight(fmt, n, k, raw, b)


def random_rows(m: int, k: int, seed: int = 0) -> np.ndarray:
    """Activations with outlier channels, a row of zeros and groups of zeros, as real ones have."""
    rng = np.random.default_rng([seed, m, k])
    x = rng.standard_normal((m, k)).astype(np.float32)
    x[:, ::37] *= 50
    x[m // 2] = 0
    x[:, :32] *= rng.random((m, 1)) < 0.5
    return np.ascontiguousarray(x)


def rows_of(context: Context, kind: RowsKind, x: np.ndarray) -> Rows:
    return Rows.of(context, kind, np.ascontiguousarray(x))
