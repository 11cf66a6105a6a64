from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from engine.layers.activation import silu_and_mul
from engine.layers.norm import RMSNorm
from engine.layers.rotary import RotaryEmbedding, rotate
from engine.quantization.registry import linear_method
from engine.quantization.row_tiles import SIZES, apply_tiled, proven_sizes
from engine.weights.checkpoint import open_checkpoint
from engine.weights.hf_config import config_from_hf
from engine.weights.layout import expected_tensors
from engine.weights.torch_loader import WeightLoader
from tests.engine.weights.files import random_tensors
from tests.engine.weights.test_checkpoint import hf_config, write_directory

CPU = torch.device("cpu")


@pytest.fixture
def loader(tmp_path):
    config = hf_config("qwen2", vocab_size=700_001 // 100)
    tensors = random_tensors(expected_tensors(config_from_hf(config, "x")))
    checkpoint = open_checkpoint(write_directory(tmp_path / "m", config, tensors))
    with WeightLoader(checkpoint, dtype=torch.float32, device=CPU, threads=2) as loader:
        loader.tensors = tensors
        yield loader


def test_loader_parts_equal_slices(loader, monkeypatch):
    monkeypatch.setattr("engine.weights.torch_loader._SLICE_VALUES", 100)
    name = "model.embed_tokens.weight"
    array = loader.tensors[name]
    assert np.array_equal(loader.matrix(name).numpy(), array)
    assert np.array_equal(loader.matrix(name, slice(11, 4000), slice(5, 9)).numpy(), array[11:4000, 5:9])
    bias = "model.layers.0.self_attn.q_proj.bias"
    assert np.array_equal(loader.vector(bias, slice(4, 12)).numpy(), loader.tensors[bias][4:12])
    assert loader.has(bias)
    assert not loader.has("model.layers.0.self_attn.o_proj.bias")


def test_rms_norm_and_its_residual(loader):
    norm = RMSNorm(loader, "model.norm")
    x, residual = torch.randn(5, 32), torch.randn(5, 32)
    expected = F.rms_norm(x, (32,), norm.weight, norm.eps)
    assert torch.allclose(norm(x), expected, atol=1e-6)
    out, total = norm.with_residual(x, residual)
    assert torch.equal(total, x + residual)
    assert torch.equal(out, norm(x + residual))
    assert torch.equal(norm.with_residual(x, None)[1], x)
    heads = torch.randn(5, 3, 32)
    assert torch.allclose(norm(heads)[:, 1], norm(heads[:, 1]))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("width", [48, 64, 96, 896])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_ops_give_the_same_bits_for_any_number_of_rows(loader, threads, width, dtype):
    """silu is where it goes wrong: torch computes a thread's last values another way than the others."""
    x = torch.randn(520, 2 * width).to(dtype)
    norm = RMSNorm(loader, "model.norm")
    norm.weight = torch.ones(2 * width, dtype=dtype)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        silu = torch.cat([silu_and_mul(row) for row in x.split(1)])
        normed = torch.cat([norm(row) for row in x.split(1)])
        for rows in (2, 3, 5, 8, 33, 100, 511, 520):
            assert torch.equal(silu_and_mul(x[:rows]), silu[:rows])
            assert torch.equal(norm(x[:rows]), normed[:rows])
    finally:
        torch.set_num_threads(before)
    gate, up = x.float().chunk(2, -1)
    assert torch.allclose(silu.float(), F.silu(gate) * up, atol=1e-5, rtol=0.02 if dtype == torch.bfloat16 else 1e-5)


def test_rotation_keeps_inner_products_of_equal_distance():
    """What rotary embedding is for: q at i against k at j depends on i - j alone."""
    config = config_from_hf(hf_config("llama"), "x")
    rotary = RotaryEmbedding(config, 100, CPU)
    q, k = torch.randn(2, 8, generator=torch.Generator().manual_seed(3))

    def score(i: int, j: int) -> float:
        cos, sin = rotary.at(torch.tensor([i, j]))
        rotated = rotate(torch.stack([q, k])[:, None], cos, sin)[:, 0]
        return float(rotated[0] @ rotated[1])

    assert score(5, 3) == pytest.approx(score(97, 95), abs=1e-4)
    assert score(5, 3) != pytest.approx(score(5, 4), abs=1e-2)
    assert torch.equal(rotate(q[None, None], *rotary.at(torch.tensor([0])))[0, 0], q)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_proven_tiles_hold_for_other_data(dtype):
    weight, bias = torch.randn(96, 80).to(dtype), torch.randn(96).to(dtype)

    def multiply(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    sizes = proven_sizes(multiply, 80, dtype)
    assert sizes
    x = torch.randn(300, 80).to(dtype) * 3
    expected = apply_tiled(multiply, x, sizes)
    assert torch.allclose(expected.float(), multiply(x).float(), atol=1e-4 if dtype == torch.float32 else 0.3)
    for start in range(0, 40, 7):
        for rows in (1, 2, 4, 5, 15, 16, 17, 64, 127, 130, 200):
            assert torch.equal(apply_tiled(multiply, x[start : start + rows], sizes), expected[start : start + rows])


def test_a_kernel_that_depends_on_the_batch_is_found_out():
    """Sums in another order for other row counts, or for other places in the tile: such sizes are not used."""
    weight = torch.randn(32, 200)

    def in_order(x: torch.Tensor, order: range) -> torch.Tensor:
        total = torch.zeros(len(x), 32)
        for k in order:
            total += x[:, k : k + 1] * weight[:, k]
        return total

    def forwards(x: torch.Tensor) -> torch.Tensor:
        return in_order(x, range(200))

    def backwards(x: torch.Tensor) -> torch.Tensor:
        return in_order(x, range(199, -1, -1))

    assert proven_sizes(forwards, 200, torch.float32) == SIZES
    assert proven_sizes(lambda x: backwards(x) if len(x) == 128 else forwards(x), 200, torch.float32) == (4, 16, 64)
    assert proven_sizes(lambda x: backwards(x) if len(x) == 4 else forwards(x), 200, torch.float32) == (16, 64, 128)

    def by_place(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([forwards(x[:1]), backwards(x[1:])])

    assert proven_sizes(by_place, 200, torch.float32) == (1,)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 16, 17, 65, 128, 129, 300])
def test_tiles_call_only_with_their_sizes(rows):
    seen = []

    def multiply(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return x * 2

    x = torch.randn(rows, 3)
    assert torch.equal(apply_tiled(multiply, x, (4, 16, 128)), x * 2)
    assert set(seen) <= {4, 16, 128}
    assert sum(seen) < 2 * max(rows, 4)


def test_unknown_quantization_is_refused():
    with pytest.raises(ValueError, match="int4 is not supported by the torch runner"):
        linear_method("int4")
