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
    periods = _periods(rope.theta, dim)
    inv_freq, scale = np.reciprocal(periods), 1.0
    if rope.type == "linear":
        inv_freq = inv_freq / np.float32(rope.factor)
    elif rope.type == "llama3":
        inv_freq = _llama3(inv_freq, rope)
    elif rope.type == "yarn":
        inv_freq, scale = _yarn(periods, rope, dim)
    if rope.freq_factors:
        inv_freq = inv_freq / np.asarray(rope.freq_factors, dtype=np.float32)
    return inv_freq, scale


def _periods(theta: float, dim: int) -> FloatArray:
    """theta^(2i / dim), the exponent in float32: models are trained with frequencies of that precision, and at
    position 30,000 a last bit is a thousandth of a radian."""
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    periods: FloatArray = np.power(theta, exponents, dtype=np.float64).astype(np.float32)
    return periods


def rope_tables(config: ModelConfig, positions: int) -> tuple[FloatArray, FloatArray]:
    """cos and sin, each [positions, head_dim / 2] float32."""
    inv_freq, scale = rope_frequencies(config)
    angles = np.arange(positions, dtype=np.float32)[:, None] * inv_freq[None, :]
    return np.cos(angles) * np.float32(scale), np.sin(angles) * np.float32(scale)


def _llama3(inv_freq: FloatArray, rope: RopeConfig) -> FloatArray:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, a linear blend between."""
    turns = np.float32(rope.original_max_positions) * inv_freq / np.float32(2 * math.pi)
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    keep = np.clip((turns - low) / (high - low), np.float32(0), np.float32(1))
    blended: FloatArray = (1 - keep) * (inv_freq / np.float32(rope.factor)) + keep * inv_freq
    return blended


def _yarn(periods: FloatArray, rope: RopeConfig, dim: int) -> tuple[FloatArray, float]:
    """YaRN (arXiv 2309.00071), NTK by parts: ramp between interpolation and the original frequencies."""

    def correction(rotations: float) -> float:
        turns = rope.original_max_positions / (rotations * 2 * math.pi)
        return dim * math.log(turns) / (2 * math.log(rope.theta))

    low, high = correction(rope.beta_fast), correction(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    span = high - low if high != low else 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(span), 0, 1)
    stretched = np.float32(1) / (np.float32(rope.factor) * periods)
    blended = stretched * ramp + np.float32(1) / periods * (1 - ramp)
    scale = rope.attention_factor
    if scale is None:
        scale = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
    return blended, scale
