"""A counter-based random number per (seed, position): no state, so nothing to share, restore or replay."""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """SplitMix64's finaliser (Steele, Lea & Flood, 2014): a bijection on 64-bit integers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits. Any integer is a seed; each seed starts a stream of its own."""
    stream = mix64(mix64(seed & MASK) ^ ((seed >> 64) & MASK) ^ GOLDEN)
    return (mix64((stream + (position + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53
