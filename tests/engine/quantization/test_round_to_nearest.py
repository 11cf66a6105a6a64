"""Weights rounded while loading: what may be lost, and that the packed form stands for what is multiplied."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.quant_weight import QuantWeight, dequantize, quant_linear_ref
from engine.quantization.base import Shard
from engine.quantization.packed import PackedLinear, PackedLinearMethod
from engine.quantization.registry import linear_method
from engine.quantization.round_to_nearest import quantize, read_int4, read_int8
from engine.weights.checkpoint import open_checkpoint
from engine.weights.torch_loader import WeightLoader
from tests.engine.models.tiny import make_model, save

READERS = {"int8": read_int8, "int4": read_int4}


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(("kind", "steps"), [("int8", 127), ("int4", 15)])
@pytest.mark.parametrize("k", [32, 96, 128, 320])
def test_every_value_is_off_by_half_a_step_at_most(kind, steps, k):
    weight = randn(9, k)
    weight[3] = 0.0
    weight[4] = weight[4].abs() + 5.0
    packed = quantize(weight, kind)
    assert isinstance(packed, QuantWeight)
    bound = packed.scales.repeat_interleave(packed.group_k, 1) * (0.5 if kind == "int8" else 1.0) + 1e-6
    assert ((dequantize(packed) - weight).abs() <= bound).all()
    assert (dequantize(packed)[3] == 0).all()


def test_widths_that_no_group_divides_stay_plain():
    weight = randn(4, 40)
    assert quantize(weight, "int8") is weight


def test_only_for_float_checkpoints_on_a_gpu(tmp_path):
    assert isinstance(linear_method("int8", on_gpu=True), PackedLinearMethod)
    with pytest.raises(ValueError, match="--quantization int8"):
        linear_method("int8")


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_merged_linear_and_an_untouched_head(name, tmp_path):
    path = save(make_model("qwen3", num_hidden_layers=1), tmp_path)
    weights = WeightLoader(open_checkpoint(path), dtype=torch.float32, device=torch.device("cpu"))
    method = linear_method(name, on_gpu=True)
    modules = [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up")]
    x = randn(3, 64)
    op = method._packed(weights, [READERS[name](weights, None, Shard(module)) for module in modules], None)
    parts = [quantize(weights.matrix(f"{module}.weight"), name) for module in modules]
    expected = torch.cat([quant_linear_ref(x, part) for part in parts], dim=1)
    assert isinstance(op, PackedLinear)
    assert torch.allclose(op(x), expected, atol=1e-4)
    assert torch.equal(method.matrix(weights, Shard(modules[0])), weights.matrix(f"{modules[0]}.weight"))
    head = weights.matrix("lm_head.weight")
    assert torch.allclose(method.load(weights, [Shard("lm_head")])(x), x @ head.T, atol=1e-4)
