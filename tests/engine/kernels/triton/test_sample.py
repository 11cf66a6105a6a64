"""Sampling without a sort: exactly the tokens of the sorted reference, whatever the filters and masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.kernels.triton.sample import BROKEN, NOTHING, SampleParams, kept_ref, sample, sample_ref
from engine.sampling.draw import draw
from tests.engine.kernels.triton.cases import DEVICE, randn

FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 7},
    {"top_p": 0.5},
    {"top_p": 1e-6},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "temperature": 1.7},
    {"temperature": 0.0},
    {"temperature": 0.05, "top_p": 0.95},
]


def params(rows: int, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, mask=None, u=None) -> SampleParams:
    def column(value, dtype):
        return torch.full((rows,), value, dtype=dtype, device=DEVICE)

    points = np.random.default_rng(3).random(rows) if u is None else np.full(rows, u)
    return SampleParams(
        column(temperature, torch.float32),
        column(top_k, torch.int32),
        column(top_p, torch.float32),
        column(min_p, torch.float32),
        torch.tensor(points, dtype=torch.float32, device=DEVICE),
        mask,
    )


def random_mask(rows: int, vocab: int, share: float) -> torch.Tensor:
    allowed = np.random.default_rng(1).random((rows, -(-vocab // 32) * 32)) < share
    packed = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    return torch.from_numpy(packed.copy()).to(DEVICE)


def assert_drawn(logits: torch.Tensor, settings: SampleParams) -> None:
    """The reference's token or, where u falls within rounding of a border, a kept neighbour of that border."""
    got = sample(logits, settings)
    weights = kept_ref(logits, settings)
    cumulative = weights.cumsum(1) / weights.sum(1, keepdim=True)
    expected = sample_ref(logits, settings)
    for row in range(len(got)):
        token = int(got[row])
        assert weights[row, token] > 0
        if token != int(expected[row]):
            border = min(token, int(expected[row]))
            assert abs(float(cumulative[row, border]) - float(settings.u[row])) < 1e-5


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab", [50, 150])
def test_filters(filters, vocab):
    assert_drawn(randn(3, vocab, scale=3.0), params(3, **filters))


@pytest.mark.parametrize("filters", FILTERS[::3], ids=str)
def test_masked_rows(filters):
    mask = random_mask(2, 200, 0.1)
    assert_drawn(randn(2, 200, scale=3.0), params(2, **filters, mask=mask))


@pytest.mark.parametrize("u", [0.0, 0.5, 0.9999999])
def test_the_ends_of_the_distribution(u):
    assert_drawn(randn(2, 100, scale=2.0), params(2, u=u, top_p=0.9))


def test_bfloat16_logits_with_many_ties():
    logits = randn(3, 120, scale=1.0).mul(2).round().to(torch.bfloat16)
    for filters in ({"top_k": 5}, {"top_p": 0.4}, {"temperature": 0.0}):
        assert_drawn(logits, params(3, **filters))


@pytest.mark.parametrize("filters", [{}, {"temperature": 0.0}, {"top_k": 3, "top_p": 0.5}], ids=str)
def test_rows_that_cannot_be_drawn(filters):
    """NaN and infinity break a row even where the mask hides them, as on the host; a mask alone empties it."""
    logits = randn(6, 64)
    logits[0, 5], logits[1, 9], logits[3, 40], logits[4] = float("nan"), float("inf"), float("nan"), -float("inf")
    mask = torch.full((6, 2), -1, dtype=torch.int32, device=DEVICE)
    mask[2], mask[3, 1] = 0, 0
    got = sample(logits, params(6, mask=mask, **filters)).tolist()
    assert got[:5] == [BROKEN, BROKEN, NOTHING, BROKEN, BROKEN]
    assert got[5] >= 0
    assert sample(logits, params(6, **filters)).tolist()[3] == BROKEN
    assert sample(logits[:0], params(0)).shape == (0,)


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 0.0}, {"top_p": 0.3, "top_k": 9}, {"min_p": 1.0}], ids=str)
def test_both_zeros_are_the_same_number(filters):
    logits = torch.tensor([[0.0, -0.0] * 20, [-0.0, -1.0] * 20], device=DEVICE)
    for u in (0.0, 0.4, 0.99):
        assert_drawn(logits, params(2, u=u, **filters))


def test_large_logits_do_not_overflow():
    logits = torch.tensor([[3e4, 2.9e4, -3e4, 0.0] * 10], device=DEVICE)
    assert_drawn(logits, params(1, temperature=1e-3, top_p=0.9))


@pytest.mark.parametrize("filters", [FILTERS[0], *FILTERS[2:7], {"top_k": 12, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_as_the_host_sampler(filters, ties):
    """Where a row is sampled must not show: drafts and logprobs decide about that. u at a border is left out."""
    logits = randn(60, 150, scale=2.5)
    if ties:
        logits = logits.mul(2).round().to(torch.bfloat16).float()
    settings = params(60, **filters)
    weights = kept_ref(logits, settings)
    cumulative = weights.cumsum(1) / weights.sum(1, keepdim=True)
    clear = (cumulative - settings.u.double()[:, None]).abs().amin(1) > 1e-5
    expected = sample_ref(logits, settings)
    few = SampleParams(*(getattr(settings, name)[:4] for name in ("temperature", "top_k", "top_p", "min_p", "u")))
    kernel = sample(logits[:4], few)
    for row in clear.nonzero()[:, 0].tolist():
        values = {"temperature": 1.0, **filters}
        drawn = draw(logits[row].cpu().numpy().copy(), float(settings.u[row]), **values)
        assert drawn == int(expected[row])
        assert row >= 4 or drawn == int(kernel[row])
    assert clear.sum() > 50
