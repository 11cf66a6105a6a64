"""A row's bits do not depend on the rows beside it, on their number, on its place or on the thread count."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.cpu.linear import Context, Format, Isa, Linear, RowsKind
from tests.engine.kernels.cpu.linear_cases import FLOATS, LEVELS, QUANTIZED, random_rows, random_weight, rows_of

pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")
FORMATS = (*QUANTIZED, *FLOATS)
N, K = 41, 1280  # more than one unpacked tile along K, a ragged last block along N


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint32)


def counts(isa: Isa) -> list[int]:
    """Row counts 1..513; the plain loops are slow and have one path, so fewer there."""
    return [*range(1, 71), 127, 255, 256, 257, 300, 511, 512, 513] if isa >= Isa.AVX2 else [1, 2, 3, 7, 30, 257]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_any_number_of_rows(context: Context, fmt: Format) -> None:
    layer = Linear.stack([random_weight(fmt, N, K, bias=True)])
    x = random_rows(513, K)
    whole = bits(layer.forward(context, rows_of(context, layer.rows_kind, x[: counts(context.isa)[-1]])))
    for m in counts(context.isa):
        got = bits(layer.forward(context, rows_of(context, layer.rows_kind, x[:m])))
        assert np.array_equal(got, whole[:m]), m
    layer.close()


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda f: f.name)
def test_any_place_and_company(context: Context, fmt: Format) -> None:
    layer = Linear.stack([random_weight(fmt, N, K)])
    x = random_rows(60, K)
    kind = layer.rows_kind
    alone = np.concatenate([layer.forward(context, rows_of(context, kind, x[i : i + 1])) for i in range(60)])
    rng = np.random.default_rng(0)
    for m in (2, 5, 6, 7, 12, 17, 25, 60):
        chosen = rng.permutation(60)[:m]
        got = layer.forward(context, rows_of(context, kind, x[chosen]))
        assert np.array_equal(bits(got), bits(alone[chosen])), m
    layer.close()


@pytest.mark.parametrize("threads", [1, 3, 5])
@pytest.mark.parametrize("fmt", [Format.Q5_0, Format.Q6_K, Format.BF16], ids=lambda f: f.name)
@pytest.mark.parametrize("n", [33, 700])
def test_any_thread_count(fmt: Format, threads: int, n: int) -> None:
    layer = Linear.stack([random_weight(fmt, n, 512)])
    two, other = Context(2), Context(threads)
    for m in (1, 9, 300, 600):
        x = random_rows(m, 512)
        got = [bits(layer.forward(c, rows_of(c, layer.rows_kind, x))) for c in (two, other)]
        assert np.array_equal(*got), m
    for closing in (two, other, layer):
        closing.close()


@pytest.mark.parametrize("out", RowsKind, ids=lambda k: k.name)
@pytest.mark.parametrize("fmt", [Format.Q5_0, Format.Q4_K, Format.BF16], ids=lambda f: f.name)
def test_gate_up(context: Context, fmt: Format, out: RowsKind) -> None:
    layer = Linear.gate_up(random_weight(fmt, 64, 512, 1), random_weight(fmt, 64, 512, 2))
    x = random_rows(270, 512)
    whole = layer.forward_gate_up(context, rows_of(context, layer.rows_kind, x), out).values()
    for m in (1, 2, 6, 7, 13, 50, 257):
        got = layer.forward_gate_up(context, rows_of(context, layer.rows_kind, x[:m]), out).values()
        assert np.array_equal(bits(got), bits(whole[:m])), m
    layer.close()
