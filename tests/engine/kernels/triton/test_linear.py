"""Matrix kernels: gate_up with its epilogue, experts in groups, and weights of 8 and 4 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.kernels.quant_weight import QuantWeight, dequantize, pack_int4, quant_linear_ref, unpack_int4
from engine.kernels.triton.gate_up import gate_up, gate_up_ref
from engine.kernels.triton.grouped_mlp import Routing, grouped_mlp, grouped_mlp_ref, sort_by_expert
from engine.kernels.triton.grouped_quant import grouped_quant_mlp, grouped_quant_mlp_ref
from engine.kernels.triton.quant_linear import quant_linear, refuses
from tests.engine.kernels.triton.cases import DEVICE, assert_near, randn

DTYPES = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n", "k"), [(0, 32, 64), (1, 33, 100), (5, 96, 256), (17, 70, 64), (65, 32, 40)])
def test_gate_up(rows, n, k, dtype):
    x, weight = randn(rows, k, dtype=dtype), randn(2 * n, k, dtype=dtype, seed=1, scale=k**-0.5)
    assert_near(gate_up(x, weight), gate_up_ref(x, weight))


def routing(tokens: int, experts: int, top: int, seed: int = 0) -> Routing:
    generator = torch.Generator().manual_seed(seed)
    weights, ids = torch.rand((tokens, experts), generator=generator).topk(top, dim=1)
    return Routing(ids.to(DEVICE), weights.to(DEVICE))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("tokens", "experts", "top", "n", "k"),
    [(0, 4, 2, 16, 32), (1, 8, 2, 40, 64), (9, 4, 3, 33, 50), (40, 3, 1, 32, 32)],
)
def test_grouped_mlp(tokens, experts, top, n, k, dtype):
    x = randn(tokens, k, dtype=dtype)
    first = randn(experts, 2 * n, k, dtype=dtype, seed=1, scale=k**-0.5)
    second = randn(experts, k, n, dtype=dtype, seed=2, scale=n**-0.5)
    route = routing(tokens, experts, top)
    assert_near(grouped_mlp(x, first, second, route), grouped_mlp_ref(x, first, second, route), slack=2.0)


def test_all_tokens_to_one_expert():
    x, first, second = randn(40, 32), randn(5, 64, 32, seed=1, scale=0.2), randn(5, 32, 32, seed=2, scale=0.2)
    route = Routing(torch.full((40, 1), 3, device=DEVICE), torch.ones((40, 1), device=DEVICE))
    assert_near(grouped_mlp(x, first, second, route), grouped_mlp_ref(x, first, second, route))


@pytest.mark.parametrize(
    ("tokens", "experts", "top", "block"), [(1, 8, 2, 16), (50, 8, 2, 16), (7, 3, 3, 4), (64, 2, 1, 64)]
)
def test_sorting_puts_every_pair_into_a_block_of_its_expert(tokens, experts, top, block):
    ids = routing(tokens, experts, top).ids
    pairs, owners = sort_by_expert(ids, experts, block)
    flat = ids.reshape(-1).tolist()
    seen = []
    for index, owner in enumerate(owners.tolist()):
        inside = [pair for pair in pairs[index * block : (index + 1) * block].tolist() if pair < len(flat)]
        assert all(flat[pair] == owner for pair in inside)
        seen += inside
    assert sorted(seen) == list(range(len(flat)))


def quantized(kind: str, n: int, k: int, group_n: int, group_k: int) -> QuantWeight:
    generator = torch.Generator().manual_seed(n + k)
    shape = (-(-n // group_n), -(-k // group_k))
    scales = (0.5 + torch.rand(shape, generator=generator)) / 100
    zeros = None
    if kind == "int8":
        data = torch.randint(-127, 128, (n, k), generator=generator).to(torch.int8)
    elif kind == "int4":
        data = pack_int4(torch.randint(0, 16, (n, k), generator=generator), group_k)
        zeros = torch.randint(0, 17, (n, shape[1]), generator=generator).to(torch.uint8).to(DEVICE)
        scales = (scales * 10).half()
    else:
        data = torch.randn((n, k), generator=generator).mul(40).to(torch.float8_e4m3fn)
    return QuantWeight(kind, data.to(DEVICE), scales.to(DEVICE), group_n, group_k, zeros)


QUANTIZED = [
    ("int8", 33, 96, 1, 96),
    ("int8", 64, 130, 1, 130),
    ("int8", 40, 128, 1, 32),
    ("int4", 33, 128, 1, 32),
    ("int4", 64, 256, 1, 128),
    ("int4", 48, 128, 1, 64),
    ("fp8", 33, 96, 33, 96),
    ("fp8", 40, 100, 1, 100),
    ("fp8", 200, 256, 128, 128),
    ("fp8", 130, 160, 64, 32),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "n", "k", "group_n", "group_k"), QUANTIZED)
def test_quantized_linear(kind, n, k, group_n, group_k, dtype):
    weight = quantized(kind, n, k, group_n, group_k)
    assert refuses(weight) is None
    bias = randn(n, dtype=dtype, seed=4)
    for rows, extra in ((0, None), (1, None), (18, bias)):
        x = randn(rows, k, dtype=dtype, scale=k**-0.5)
        assert_near(quant_linear(x, weight, extra), quant_linear_ref(x, weight, extra), slack=2.0)


GROUPED = [
    ("int8", 5, 40, 96, 1, 32),
    ("int4", 5, 32, 64, 1, 32),
    ("int4", 3, 96, 128, 1, 32),
    ("int4", 2, 128, 256, 1, 128),
    ("fp8", 5, 33, 50, 1, 0),
    ("fp8", 4, 32, 64, 1, 32),
    ("fp8", 2, 128, 128, 128, 128),
]
"""kind, experts, hidden units, width, group_n, group_k (0: one scale a row)."""


def experts_of(kind: str, experts: int, n: int, k: int, group_n: int, group_k: int) -> tuple[QuantWeight, QuantWeight]:
    first = quantized(kind, experts * 2 * n, k, group_n, group_k or k)
    second = quantized(kind, experts * k, n, group_n, group_k or n)
    return replace(first, scales=first.scales * 2), second


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("tokens", "top"), [(0, 2), (1, 1), (9, 2), (45, 2)])
@pytest.mark.parametrize(("kind", "experts", "n", "k", "group_n", "group_k"), GROUPED)
def test_grouped_quantized_mlp(kind, experts, n, k, group_n, group_k, tokens, top, dtype):
    first, second = experts_of(kind, experts, n, k, group_n, group_k)
    assert refuses(first) is refuses(second) is None
    x, route = randn(tokens, k, dtype=dtype), routing(tokens, experts, top)
    got = grouped_quant_mlp(x, first, second, route)
    assert_near(got, grouped_quant_mlp_ref(x, first, second, route), slack=2.0)


def test_packed_experts_that_nobody_goes_to_are_not_read():
    """All tokens at one expert; every other expert's scales are NaN."""
    first, second = experts_of("int4", 4, 64, 64, 1, 32)
    for part, height in ((first, 128), (second, 64)):
        part.scales[: 2 * height] = float("nan")
        part.scales[3 * height :] = float("nan")
    x = randn(20, 64)
    route = Routing(torch.full((20, 1), 2, device=DEVICE), torch.ones((20, 1), device=DEVICE))
    got = grouped_quant_mlp(x, first, second, route)
    for part in (first, second):
        part.scales.nan_to_num_(0.0)
    assert_near(got, grouped_quant_mlp_ref(x, first, second, route))


def test_eight_bit_floats_are_refused_by_gpus_without_them(monkeypatch):
    weight, cuda = quantized("fp8", 33, 96, 1, 96), torch.device("cuda")
    for capability, reason in (((8, 0), "need compute capability 8.9, this GPU has 8.0"), ((9, 0), None)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None, found=capability: found)
        assert refuses(weight, cuda) is reason or reason in refuses(weight, cuda)
        assert refuses(quantized("int4", 33, 128, 1, 32), cuda) is None


def test_dequantized_values_follow_the_definition():
    weight = quantized("int4", 5, 64, 1, 32)
    values = unpack_int4(weight.data, 32)
    wide = dequantize(weight)
    for i, j in ((0, 0), (4, 63), (2, 31), (3, 32), (1, 47)):
        expected = (float(values[i, j]) - float(weight.zeros[i, j // 32])) * float(weight.scales[i, j // 32])
        assert float(wide[i, j]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("group", [32, 64, 128])
def test_packing_four_bits_loses_nothing(group):
    values = torch.randint(0, 16, (3, 2 * group)).to(torch.uint8)
    assert torch.equal(unpack_int4(pack_int4(values, group), group), values)


def test_weights_that_no_block_divides_are_refused():
    assert "groups of 24" in refuses(QuantWeight("int8", torch.zeros(4, 96), torch.ones(4, 4), 1, 24))
    assert "no multiple" in refuses(QuantWeight("int4", torch.zeros(4, 40), torch.ones(4, 3), 1, 32))
