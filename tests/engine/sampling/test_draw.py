"""The sampler's filters against a plain reference, and its frequencies against the exact distribution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sampling.draw import draw
from engine.sampling.rng import uniform
from engine.sampling.topk import least_of_top, top_indices


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(1, 400), st.integers(0, 2**32 - 1), st.booleans())
def test_top_indices_equals_a_full_sort(size, count, seed, ties):
    rng = np.random.default_rng(seed)
    row = (rng.integers(0, 5, size) if ties else rng.standard_normal(size)).astype(np.float32)
    got = top_indices(row, count)
    want = np.sort(row)[::-1][: min(count, size)]
    assert least_of_top(row, min(count, size)) == want[-1]
    assert len(set(got.tolist())) == len(want)
    np.testing.assert_array_equal(row[got], want)
    if not ties:
        np.testing.assert_array_equal(got, np.argsort(-row, kind="stable")[:count])


def allowed_and_probabilities(row, temperature, top_k, top_p, min_p):
    """Temperature, min_p, top_k, top_p, in float64 by full sorts. Returns probabilities [V]."""
    z = row.astype(np.float64) / temperature
    p = np.exp(z - z.max())
    p[p < min_p] = 0.0
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0.0
    cumulative = np.cumsum(p[order])
    size = int(np.searchsorted(cumulative, top_p * cumulative[-1] - 1e-12)) + 1
    p[order[size:]] = 0.0
    return p / p.sum()


FILTERS = [
    {},
    {"top_k": 5},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"top_k": 40, "top_p": 0.9},
    {"top_p": 0.95, "min_p": 0.02},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"top_k": 100_000},
    {"top_p": 0.999999},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
def test_frequencies_match_the_exact_distribution(filters, temperature):
    row = (np.random.default_rng(3).standard_normal(700) * 3).astype(np.float32)
    full = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | filters
    want = allowed_and_probabilities(row, temperature, **full)
    n = 4000
    got = np.zeros(len(row))
    for i in range(n):
        got[draw(row.copy(), (i + uniform(9, i)) / n, temperature=temperature, **full)] += 1
    assert got[want == 0].sum() == 0, "a filtered token came out"
    assert np.abs(got / n - want).max() < 2.5 / n, "stratified u: every share is right to about one sample"


@settings(max_examples=80, deadline=None)
@given(
    st.integers(1, 2000),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-5, 0.1, 1.0, 2.0]),
    st.sampled_from([0, 1, 7, 300]),
    st.sampled_from([1e-6, 0.3, 0.9, 1.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.floats(0, 1, exclude_max=True),
)
def test_never_a_masked_token_and_never_an_exception(size, seed, temperature, top_k, top_p, min_p, u):
    rng = np.random.default_rng(seed)
    row = (rng.standard_normal(size) * rng.choice([0.0, 1.0, 50.0])).astype(np.float32)
    row[rng.random(size) < 0.7] = -np.inf
    row[rng.integers(size)] = 1.0
    token = draw(row.copy(), u, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert np.isfinite(row[token])
    if top_k == 1 or temperature == 1e-5 or min_p == 1.0 or top_p == 1e-6:
        assert row[token] >= row.max() - 1e-3, "the limit of every filter is the argmax"


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_ends_of_the_unit_interval(u, filters):
    row = np.full(1000, -np.inf, np.float32)
    row[[3, 500, 900]] = [0.0, 1.0, 0.5]
    assert draw(row.copy(), u, temperature=1.0, **filters) in (3, 500, 900)
