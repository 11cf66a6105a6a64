"""RMSNorm, rotary and argmax of the native kernels against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.cpu.loader import address, load
from tests.engine.kernels.cpu.decoder import rotate


@pytest.fixture(params=[0, 1, 2])
def native(request):
    lib = load()
    if request.param > lib.cg_isa_best():
        pytest.skip("this processor lacks the instructions")
    context = lib.cg_ctx_create(1, request.param)
    yield lib, context
    lib.cg_ctx_destroy(context)


@pytest.mark.parametrize("width", [1, 15, 16, 64, 896, 1000])
def test_rms_norm(native, width):
    lib, context = native
    rng = np.random.default_rng(width)
    x = (rng.standard_normal((5, width)) * np.array([[1e-4], [1], [30], [1e4], [0]])).astype(np.float32)
    weight = rng.standard_normal(width).astype(np.float32)
    out = np.empty_like(x)
    lib.cg_rms_norm(context, address(out), address(x), address(weight), 5, width, 1e-6)
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(out, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("head_dim", [8, 64, 80, 128])
@pytest.mark.parametrize("norm", [False, True])
def test_rotary_with_and_without_norm(native, head_dim, norm):
    lib, context = native
    rng = np.random.default_rng(head_dim)
    rows = 6
    x = rng.standard_normal((rows, head_dim)).astype(np.float32)
    weight = rng.standard_normal(head_dim).astype(np.float32) if norm else None
    inv_freq = (1e4 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    positions = np.array([0, 1, 7, 100, 4000, 32000])
    angles = positions[:, None].astype(np.float64) * inv_freq
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    out = x.copy()
    lib.cg_rotate(context, address(out), address(weight), 1e-6, address(cos), address(sin), rows, head_dim, head_dim)
    wide = x.astype(np.float64)
    if weight is not None:
        wide = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-6) * weight
    np.testing.assert_allclose(out, rotate(wide[:, None], positions, inv_freq)[:, 0], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("size", [1, 16, 31, 32, 1000, 151936])
def test_argmax_takes_the_first_of_equals(native, size):
    lib, context = native
    rng = np.random.default_rng(size)
    for _ in range(5):
        x = rng.integers(-50, 50, size).astype(np.float32)
        assert lib.cg_argmax(context, address(x), None, size) == int(x.argmax())


@pytest.mark.parametrize("size", [20, 64, 1003])
def test_argmax_under_a_mask(native, size):
    lib, context = native
    rng = np.random.default_rng(size)
    for share in (0.0, 0.01, 0.5, 1.0):
        x = rng.standard_normal(size).astype(np.float32)
        allowed = rng.random(size) < share
        padded = np.zeros(-(-size // 32) * 32, bool)
        padded[:size] = allowed
        mask = np.packbits(padded, bitorder="little").view(np.int32)
        expected = int(np.where(allowed, x, -np.inf).argmax()) if allowed.any() else -1
        assert lib.cg_argmax(context, address(x), address(mask), size) == expected


@pytest.mark.parametrize("place", [0, 17, 99])
def test_a_nan_cannot_hide_from_argmax(native, place):
    lib, context = native
    x = np.arange(100, dtype=np.float32)
    x[place] = np.nan
    nothing = np.zeros(4, np.int32)
    assert lib.cg_argmax(context, address(x), None, 100) == place
    assert lib.cg_argmax(context, address(x), address(nothing), 100) == place
