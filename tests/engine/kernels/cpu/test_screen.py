"""The five-bit screen of a head: how far its outputs may be from the head's."""

from __future__ import annotations

import numpy as np
import pytest

from engine.kernels.cpu.linear import Context, Format, KernelError, Linear, RowsKind
from tests.engine.kernels.cpu.linear_cases import LEVELS, QUANTIZED, random_weight, rows_of

pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")


def dequantized(layer: Linear) -> np.ndarray:
    return np.stack([layer.row(i) for i in range(layer.n)]).astype(np.float64)


@pytest.mark.parametrize("k", [32, 64, 896, 1536])
def test_the_bound_holds_for_rows_made_to_break_it(context: Context, k: int) -> None:
    """Activations along what the screen leaves out of a row: there Cauchy and Schwarz leave no room but rounding."""
    weight = random_weight(Format.Q8_0, 100, k)
    head, screen = Linear.stack([weight]), Linear.screen(weight)
    full, left_out = dequantized(head), dequantized(head) - dequantized(screen)
    rng = np.random.default_rng(k)
    x = np.concatenate([left_out, full, rng.standard_normal((16, k)), np.zeros((1, k))])
    x = (x * 10.0 ** rng.integers(-6, 7, (len(x), 1))).astype(np.float32)
    rows = rows_of(context, RowsKind.Q8, x)
    length = np.sqrt((rows.values().astype(np.float64) ** 2).sum(1, keepdims=True))
    errors = screen.forward(context, rows)[-1].astype(np.float64)  # of the row of zeros: what stands for a bias
    difference = head.forward(context, rows).astype(np.float64) - screen.forward(context, rows, bias=False)
    assert (np.abs(difference) <= errors * length).all()
    along = np.abs(difference).diagonal()[errors > 0] / (errors * length[:100, 0])[errors > 0]
    assert along.max() > 0.95, "and it is no wider than it has to be"
    head.close()
    screen.close()


@pytest.mark.parametrize("fmt", sorted(set(QUANTIZED) - {Format.Q8_0}), ids=lambda f: f.name)
def test_other_types_have_none(fmt: Format) -> None:
    with pytest.raises(KernelError):
        Linear.screen(random_weight(fmt, 32, 256))
