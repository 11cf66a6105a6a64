from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.linear import (
    Context,
    Format,
    Isa,
    KernelError,
    Linear,
    Rows,
    RowsKind,
    Weight,
    aligned_bytes,
    embed_rows,
    quantize_weights,
    row_bytes,
)
from engine.kernels.cpu.linear_ref import dequantize_ref, linear_ref, quantize_rows_ref, silu_mul_ref
from tests.engine.kernels.cpu.linear_cases import (
    FLOATS,
    HALVES,
    LEVELS,
    QUANTIZED,
    block_of,
    random_rows,
    random_weight,
    rows_of,
)

pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")
ALL = (*QUANTIZED, *FLOATS)


def name(value: object) -> str:
    return getattr(value, "name", str(value))


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint32)


def assert_close(got: np.ndarray, values: np.ndarray, weight: Weight) -> None:
    """Rounding only: a few float32 ulps of the sum of magnitudes."""
    want = linear_ref(values, weight)
    size = np.abs(values).astype(np.float64) @ np.abs(dequantize_ref(weight)).astype(np.float64).T
    if weight.bias is not None:
        size = size + np.abs(weight.bias)
    # Minima and zero points cancel against the codes, so what is rounded can be larger than what is left.
    slack = 4e-6 * (size + 40 * np.abs(values).max(-1, keepdims=True)) + 1e-30
    assert np.all(np.abs(got - want) <= slack), float((np.abs(got - want) / slack).max())


class TestPacking:
    @pytest.mark.parametrize("fmt", ALL, ids=name)
    @pytest.mark.parametrize(("n", "k"), [(1, 256), (33, 512), (70, 2304)])
    def test_every_weight_survives_bit_for_bit(self, fmt: Format, n: int, k: int) -> None:
        weight = random_weight(fmt, n, k)
        layer = Linear.stack([weight])
        got = np.stack([layer.row(i) for i in range(n)])
        assert np.array_equal(bits(got), bits(dequantize_ref(weight)))
        layer.close()

    @pytest.mark.parametrize("fmt", ALL, ids=name)
    def test_blob_round_trip_without_copy(self, fmt: Format) -> None:
        weight = random_weight(fmt, 40, 512, bias=True)
        context = Context(1)
        layer = Linear.stack([weight])
        memory = aligned_bytes(layer.blob().nbytes)
        memory[:] = layer.blob()
        other = Linear.from_blob(memory)
        x = rows_of(context, layer.rows_kind, random_rows(3, 512))
        assert (other.n, other.k, other.rows_kind) == (40, 512, layer.rows_kind)
        assert np.array_equal(bits(layer.forward(context, x)), bits(other.forward(context, x)))
        assert other.blob().ctypes.data == memory.ctypes.data
        for closing in (other, layer, context):
            closing.close()

    def test_malformed_blobs_are_refused(self) -> None:
        layer = Linear.gate_up(random_weight(Format.Q5_0, 64, 256, 1), random_weight(Format.Q4_K, 64, 256, 2))
        good = layer.blob().copy()
        for size in (0, 1, 39, 40, 100, good.nbytes - 1):
            memory = aligned_bytes(good.nbytes)[:size]
            memory[:] = good[:size]
            with pytest.raises(KernelError):
                Linear.from_blob(memory)
        rng = np.random.default_rng(0)
        refused = 0
        for _ in range(3000):
            memory = aligned_bytes(good.nbytes)
            memory[:] = good
            at = int(rng.integers(0, 120))
            memory[at] ^= np.uint8(rng.integers(1, 256))
            try:
                opened = Linear.from_blob(memory)
            except KernelError:
                refused += 1
                continue
            for row in (0, opened.n - 1, opened.n, 2 * opened.n - 1):  # whatever it claims to be stays inside
                with contextlib.suppress(IndexError):
                    opened.row(row)
            opened.close()
        assert refused > 2000
        layer.close()

    def test_wrong_sizes_are_refused(self) -> None:
        good = random_weight(Format.Q8_0, 32, 64)
        with pytest.raises(ValueError, match="takes"):
            Linear.stack([Weight(Format.Q8_0, 32, 64, good.raw[:-1])])
        with pytest.raises(ValueError, match="takes"):
            Linear.stack([Weight(Format.Q4_K, 32, 64, good.raw)])
        with pytest.raises(ValueError, match="bias"):
            Linear.stack([Weight(Format.Q8_0, 32, 64, good.raw, np.zeros(31, np.float32))])
        with pytest.raises(KernelError):
            Linear.stack([Weight(Format.F32, 4, 40, np.zeros((4, 40), np.float32))])


class TestRows:
    def test_quantization_matches_the_reference(self, context: Context) -> None:
        x = random_rows(33, 320)
        codes, scales = quantize_rows_ref(x)
        rows = rows_of(context, RowsKind.Q8, x)
        want = codes.reshape(33, 10, 32).astype(np.float32) * scales[..., None]
        assert np.array_equal(bits(rows.values()), bits(want.reshape(33, 320)))

    @given(st.lists(st.floats(-(2.0**109), 2.0**109, width=32), min_size=32, max_size=32))
    @settings(max_examples=300, deadline=None)
    def test_any_group_is_within_half_a_step(self, values: list[float]) -> None:
        context = _shared_context()
        x = np.array([values], np.float32)
        got = rows_of(context, RowsKind.Q8, x).values().astype(np.float64)
        step = 2 * np.abs(x).max() / 127  # the power of two above
        assert np.all(np.abs(got - x) <= step * 0.5001 + 1.1e-30)
        assert np.all(np.abs(got) <= np.abs(x).max() + 0.5001 * step)

    def test_a_value_beyond_the_scales_is_not_finite(self, context: Context) -> None:
        x = random_rows(3, 64)
        x[1, 40] = 2e33
        got = rows_of(context, RowsKind.Q8, x).values()
        assert np.isnan(got[1, 32:]).all()
        assert np.isfinite(got[[0, 2]]).all()
        assert np.isfinite(got[1, :32]).all()

    def test_bfloat16_rounds_to_nearest_even(self, context: Context) -> None:
        x = np.array([[1.0, 1.00390625, 1.01171875, -2.5e38] + [0.0] * 28], np.float32)
        got = rows_of(context, RowsKind.BF16, x).values()
        assert got[0, :3].tolist() == [1.0, 1.0, 1.015625]
        assert got[0, 3] == pytest.approx(-2.5e38, rel=1 / 256)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("fmt", [Format.Q8_0, Format.Q4_K, Format.BF16, Format.F32], ids=name)
    def test_a_bad_value_spoils_its_own_row_only(self, context: Context, fmt: Format, bad: float) -> None:
        layer = Linear.stack([random_weight(fmt, 40, 256)])
        x = random_rows(9, 256)
        want = layer.forward(context, rows_of(context, layer.rows_kind, x))
        x[4, 100] = bad
        got = layer.forward(context, rows_of(context, layer.rows_kind, x))
        assert not np.isfinite(got[4]).any() or fmt in (Format.F32, Format.BF16)
        assert not np.isfinite(got[4]).all()
        others = [i for i in range(9) if i != 4]
        assert np.array_equal(bits(got[others]), bits(want[others]))
        layer.close()


class TestForward:
    @pytest.mark.parametrize("fmt", ALL, ids=name)
    @pytest.mark.parametrize(("n", "k"), [(1, 256), (31, 256), (97, 1280), (64, 2304)])
    def test_matches_the_reference(self, context: Context, fmt: Format, n: int, k: int) -> None:
        weight = random_weight(fmt, n, k, bias=True)
        layer = Linear.stack([weight])
        for m in (1, 2, 3, 5, 8, 13, 70):
            x = rows_of(context, layer.rows_kind, random_rows(m, k))
            assert_close(layer.forward(context, x), x.values(), weight)
        layer.close()

    @pytest.mark.parametrize("fmt", [f for f in ALL if block_of(f) == 32], ids=name)
    def test_k_of_any_multiple_of_32(self, context: Context, fmt: Format) -> None:
        for k in (32, 64, 96, 576, 896, 1056):
            weight = random_weight(fmt, 35, k)
            layer = Linear.stack([weight])
            x = rows_of(context, layer.rows_kind, random_rows(10, k))
            assert_close(layer.forward(context, x), x.values(), weight)
            layer.close()

    @pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFF], ids=hex)
    @pytest.mark.parametrize("fmt", QUANTIZED, ids=name)
    def test_extreme_codes_times_extreme_activations(self, context: Context, fmt: Format, byte: int) -> None:
        """Sums of products are held in sixteen bits on the way: the largest ones fit."""
        weight = random_weight(fmt, 32, 512)
        blocks = weight.raw.reshape(32, 512 // block_of(fmt), -1)
        codes = np.full_like(blocks, byte)
        for at in HALVES.get(fmt, (0,)):
            codes[:, :, at : at + 2] = np.array([0.5], np.float16).view(np.uint8)
        weight = Weight(fmt, 32, 512, codes.reshape(weight.raw.shape))
        layer = Linear.stack([weight])
        signs = np.ones((9, 512), np.float32)
        signs[3:6] = -1
        signs[6:, ::2] = -1
        x = rows_of(context, layer.rows_kind, signs * 127)
        for m in (1, 3, 9):
            part = rows_of(context, layer.rows_kind, (signs * 127)[:m])
            assert_close(layer.forward(context, part), x.values()[:m], weight)
        layer.close()

    @pytest.mark.parametrize("fmt", QUANTIZED, ids=name)
    @given(seed=st.integers(0, 2**32), exponent=st.integers(-12, 3), m=st.integers(1, 30), n=st.integers(1, 70))
    @settings(max_examples=15, deadline=None)
    def test_any_scale(self, fmt: Format, seed: int, exponent: int, m: int, n: int) -> None:
        context = _shared_context()
        weight = random_weight(fmt, n, 512, seed, scale=2.0**exponent, bias=seed % 2 == 0)
        layer = Linear.stack([weight])
        x = rows_of(context, layer.rows_kind, random_rows(m, 512, seed))
        assert_close(layer.forward(context, x), x.values(), weight)
        layer.close()

    def test_stacked_matrices_of_different_types(self, context: Context) -> None:
        parts = [
            random_weight(Format.Q5_0, 96, 512, 1, bias=True),
            random_weight(Format.Q5_0, 40, 512, 2),
            random_weight(Format.Q8_0, 33, 512, 3, bias=True),
        ]
        stacked = Linear.stack(parts)
        x = rows_of(context, RowsKind.Q8, random_rows(11, 512))
        got = stacked.forward(context, x)
        singles = [Linear.stack([p]) for p in parts]
        want = np.concatenate([s.forward(context, x) for s in singles], 1)
        assert stacked.n == 169
        assert np.array_equal(bits(got), bits(want))
        assert np.array_equal(stacked.row(136), singles[2].row(0))
        for layer in (stacked, *singles):
            layer.close()

    def test_adds_to_the_residual(self, context: Context) -> None:
        layer = Linear.stack([random_weight(Format.Q4_K, 45, 256, bias=True)])
        x = rows_of(context, RowsKind.Q8, random_rows(9, 256))
        base = np.random.default_rng(1).standard_normal((9, 45)).astype(np.float32)
        total = base.copy()
        layer.forward(context, x, add_to=total)
        assert np.array_equal(bits(total), bits(base + layer.forward(context, x)))
        layer.close()

    def test_rows_of_another_kind_are_refused(self, context: Context) -> None:
        layer = Linear.stack([random_weight(Format.Q8_0, 32, 64)])
        for x in (
            rows_of(context, RowsKind.F32, random_rows(2, 64)),
            rows_of(context, RowsKind.Q8, random_rows(2, 96)),
        ):
            with pytest.raises(ValueError, match="rows are"):
                layer.forward(context, x)
        layer.close()


class TestGateUp:
    @pytest.mark.parametrize("kinds", [(Format.Q5_0, Format.Q5_0), (Format.Q4_K, Format.Q6_K), (Format.BF16,) * 2])
    @pytest.mark.parametrize("out", RowsKind, ids=name)
    def test_matches_the_reference(self, context: Context, kinds: tuple[Format, Format], out: RowsKind) -> None:
        gate, up = random_weight(kinds[0], 96, 512, 1), random_weight(kinds[1], 96, 512, 2)
        layer = Linear.gate_up(gate, up)
        for m in (1, 4, 7, 33):
            x = rows_of(context, layer.rows_kind, random_rows(m, 512) * np.float32(0.05))
            got = layer.forward_gate_up(context, x, out).values()
            want = silu_mul_ref(linear_ref(x.values(), gate), linear_ref(x.values(), up)).astype(np.float32)
            step = {RowsKind.F32: 0.0, RowsKind.BF16: 1 / 256, RowsKind.Q8: 1.02 / 127}[out]
            size = np.abs(want.reshape(m, -1, 32)).max(-1, keepdims=True) if out == RowsKind.Q8 else 0
            slack = np.maximum(np.abs(want).reshape(m, -1, 32), size) * step + 2e-5 * np.abs(want).max() + 1e-7
            assert np.all(np.abs(got - want).reshape(m, -1, 32) <= slack)
        layer.close()

    def test_silu_of_huge_values_does_not_overflow(self, context: Context) -> None:
        eye = np.eye(32, dtype=np.float32)
        layer = Linear.gate_up(Weight(Format.F32, 32, 32, eye), Weight(Format.F32, 32, 32, eye))
        values = np.array([0.0, 1e-30, 1, -1, 20, -20, 87, -87, 88, -88, 200, -200, 1e4, -1e4, 1e18, -1e18], np.float32)
        x = np.concatenate([values, values])[None]
        got = layer.forward_gate_up(context, rows_of(context, RowsKind.F32, x), RowsKind.F32).values()
        want = silu_mul_ref(x.astype(np.float64), x.astype(np.float64))
        assert np.all(np.isfinite(got))
        assert np.allclose(got, want, rtol=3e-6, atol=1e-30)
        layer.close()

    def test_needs_groups_of_outputs(self) -> None:
        with pytest.raises(KernelError):
            Linear.gate_up(random_weight(Format.Q8_0, 40, 64), random_weight(Format.Q8_0, 40, 64))


class TestRaw:
    @pytest.mark.parametrize("fmt", ALL, ids=name)
    def test_embedding_rows_are_the_file_s(self, fmt: Format) -> None:
        table = random_weight(fmt, 50, 512)
        ids = np.array([0, 49, 7, 7], np.int32)
        assert np.array_equal(bits(embed_rows(fmt, table.raw, 50, 512, ids)), bits(dequantize_ref(table)[ids]))

    @pytest.mark.parametrize("bad", [-1, 50, 2**31 - 1, -(2**31)])
    def test_ids_outside_the_table_are_refused(self, bad: int) -> None:
        table = random_weight(Format.Q8_0, 50, 64)
        with pytest.raises(IndexError):
            embed_rows(Format.Q8_0, table.raw, 50, 64, np.array([3, bad], np.int32))

    @pytest.mark.parametrize("source", FLOATS, ids=name)
    @pytest.mark.parametrize(
        ("fmt", "half_step"), [(Format.Q8_0, 0.5 / 127), (Format.Q4_0, 1 / 8), (Format.Q4_1, 0.5 / 7.5)]
    )
    def test_quantized_weights_are_within_a_step(self, fmt: Format, half_step: float, source: Format) -> None:
        weight = random_weight(source, 20, 128)
        floats = dequantize_ref(weight)
        raw = quantize_weights(fmt, weight.raw, source)
        got = dequantize_ref(Weight(fmt, 20, 128, raw)).reshape(20, 4, 32)
        largest = np.abs(floats.reshape(20, 4, 32)).max(-1, keepdims=True)
        assert np.all(np.abs(got - floats.reshape(20, 4, 32)) <= largest * (half_step * 1.01 + 1e-3))

    def test_what_a_type_can_hold_is_kept(self) -> None:
        steps = np.tile(np.arange(-127, 128, 8, dtype=np.float32), 2)[None, :64] / 64
        raw = quantize_weights(Format.Q8_0, np.ascontiguousarray(steps), Format.F32)
        assert np.abs(dequantize_ref(Weight(Format.Q8_0, 1, 64, raw)) - steps).max() < 2e-3
        zeros = np.zeros((3, 64), np.float32)
        for fmt in (Format.Q8_0, Format.Q4_0, Format.Q4_1):
            raw = quantize_weights(fmt, zeros, Format.F32)
            assert not dequantize_ref(Weight(fmt, 3, 64, raw)).any()

    def test_only_these_targets(self) -> None:
        with pytest.raises(KernelError):
            quantize_weights(Format.Q6_K, np.zeros((1, 256), np.float32), Format.F32)
        assert row_bytes(Format.Q4_K, 128) == 0


def _shared_context(made: list[Context] = []) -> Context:  # noqa: B006 - hypothesis runs need one that outlives an example
    if not made:
        made.append(Context(2))
    return made[0]


def test_levels_above_the_machine_s_are_refused() -> None:
    if LEVELS[-1] == Isa.AVX512:
        pytest.skip("this machine has every level")
    with pytest.raises(KernelError):
        Context(1, Isa(LEVELS[-1] + 1))


def test_empty_rows() -> None:
    assert Rows.empty(RowsKind.Q8, 0, 64).m == 0
