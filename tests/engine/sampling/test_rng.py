from __future__ import annotations

import numpy as np

from engine.sampling.rng import mix64, uniform


def test_same_seed_and_position_same_number():
    assert uniform(5, 7) == uniform(5, 7)
    assert uniform(5, 7) != uniform(5, 8)
    assert uniform(5, 7) != uniform(6, 7)


def test_any_integer_is_a_seed():
    for seed in (0, -1, -(2**63), 2**63 - 1, 2**64, 2**64 + 1, 10**30):
        assert 0.0 <= uniform(seed, 0) < 1.0
    assert uniform(2**64 + 1, 0) != uniform(1, 0)


def test_uniform_over_positions_and_over_seeds():
    over_positions = np.array([uniform(1, i) for i in range(20_000)])
    over_seeds = np.array([uniform(i, 0) for i in range(20_000)])
    for values in (over_positions, over_seeds):
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        chi2 = float(((counts - 1000) ** 2 / 1000).sum())
        assert chi2 < 43.8, "19 degrees of freedom, p = 0.001"
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03


def test_mix64_is_a_bijection_on_samples():
    assert len({mix64(i) for i in range(10_000)}) == 10_000
