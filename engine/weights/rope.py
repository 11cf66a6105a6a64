"""Rotary frequencies in float32, with the scalings of linear, llama3 and yarn."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.weights.config import ModelConfig, RopeConfig

FloatArray = npt.NDArray[np.float32]


def rope_frequencies(config: ModelConfig) -> tuple[FloatArray, float]:
    """``(inv_freq [head_dim / 2] float32, scale)``: the angle of pair i at position p is p * inv_freq[i], and
    cos and sin are multiplied by ``scale`` (1 but for yarn). Pair i is made of elements i and i + head_dim/2.
    """
    rope, dim = config.rope, config.head_dim
    base = 1.0 / rope.theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)
    scale = 1.0
    if rope.type == "linear":
        base = base / rope.factor
    elif rope.type == "llama3":
        base = _llama3(base, rope)
    elif rope.type == "yarn":
        base, scale = _yarn(base, rope, dim)
    if rope.freq_factors:
        base = base / np.asarray(rope.freq_factors, dtype=np.float64)
    return base.astype(np.float32), scale


def rope_tables(config: ModelConfig, positions: int) -> tuple[FloatArray, FloatArray]:
    """cos and sin, each [positions, head_dim / 2] float32."""
    inv_freq, scale = rope_frequencies(config)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inv_freq[None, :]
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)


def _llama3(inv_freq: npt.NDArray[np.float64], rope: RopeConfig) -> npt.NDArray[np.float64]:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, a linear blend between."""
    turns = rope.original_max_positions * inv_freq / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - keep) * inv_freq / rope.factor + keep * inv_freq


def _yarn(inv_freq: npt.NDArray[np.float64], rope: RopeConfig, dim: int) -> tuple[npt.NDArray[np.float64], float]:
    """YaRN (arXiv 2309.00071), NTK by parts: ramp between interpolation and the original frequencies."""

    def correction(rotations: float) -> float:
        turns = rope.original_max_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    stretch = np.clip((np.arange(dim // 2) - low) / span, 0.0, 1.0)
    blended = inv_freq / rope.factor * stretch + inv_freq * (1 - stretch)
    scale = rope.attention_factor
    if scale is None:
        scale = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return blended, scale
