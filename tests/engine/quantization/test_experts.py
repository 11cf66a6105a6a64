"""Experts of quantized checkpoints as a GPU loads them: still packed, and right. On a CPU in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from engine.distributed import TensorParallel
from engine.layers.experts import PackedExperts, PlainExperts, fuse
from engine.quantization.registry import linear_method
from engine.weights.checkpoint import open_checkpoint
from engine.weights.torch_loader import WeightLoader
from tests.engine.executor.driver import load, run_whole
from tests.engine.models.tiny import make_model, random_tokens, save
from tests.engine.quantization.checkpoints import FORMATS, quantize

PREFIX = "model.layers.{}.mlp.experts"
WIDE = {"moe_intermediate_size": 64, "num_hidden_layers": 2}


def loader(path) -> WeightLoader:
    return WeightLoader(open_checkpoint(path), dtype=torch.float32, device=torch.device("cpu"))


def fused(path, layer: int, part: slice, name: str = "auto") -> PackedExperts | PlainExperts:
    weights = loader(path)
    return fuse(weights, PREFIX.format(layer), linear_method(name, weights.config.quantization, on_gpu=True), part)


@pytest.mark.parametrize("form", FORMATS)
def test_a_whole_model_over_packed_experts(form, tmp_path):
    """Logits like those of the same checkpoint made plain, with every expert as the GPU holds it."""
    path = save(make_model("moe", **WIDE), tmp_path)
    quantize(path, form)
    tokens = random_tokens(40)
    expected, executor = run_whole(load(path), tokens), load(path)
    for index, layer in enumerate(executor._model._layers):
        experts = fused(path, index, slice(0, 64))
        assert isinstance(experts, PackedExperts)
        layer._mlp._experts._fused = experts
    assert (run_whole(executor, tokens) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("form", FORMATS)
def test_memory_is_what_the_checkpoint_says(form, tmp_path):
    path = save(make_model("moe", **WIDE, hidden_size=256), tmp_path)
    quantize(path, form)
    experts = fused(path, 0, slice(0, 64))
    checkpoint = open_checkpoint(path)
    stored = sum(
        checkpoint.stored(name).data.nbytes
        for name in checkpoint.tensor_names()
        if PREFIX.format(0) in name and (form == "gptq-act-order" or not name.endswith("g_idx"))
    )
    scales = sum(experts_part.scales.nbytes for experts_part in (experts.gate_up, experts.down))
    assert experts.gate_up.nbytes + experts.down.nbytes - scales <= stored
    assert experts.gate_up.nbytes + experts.down.nbytes <= 1.13 * stored
    values = 3 * 8 * 64 * 256
    assert experts.gate_up.data.nbytes + experts.down.data.nbytes == values // (1 if "fp8" in form else 2)


@pytest.mark.parametrize("form", ["awq", "gptq", "fp8-tensor", "fp8-block"])
def test_ranks_hold_their_share_of_every_expert(form, tmp_path):
    path = save(make_model("moe", **WIDE), tmp_path)
    quantize(path, form)
    generator = torch.Generator().manual_seed(0)
    x, shares = torch.randn(5, 64, generator=generator), torch.rand(5, 2, generator=generator)
    ids = torch.tensor([[0, 3], [7, 1], [2, 5], [0, 7], [6, 4]])
    whole = fused(path, 1, slice(0, 64))(x, ids, shares)
    parts = [fused(path, 1, TensorParallel(rank, 2).share(64, "units")) for rank in range(2)]
    assert all(isinstance(part, PackedExperts) for part in parts)
    assert (sum(part(x, ids, shares) for part in parts) - whole).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_float_experts_can_be_rounded_while_loading(name, tmp_path):
    path = save(make_model("moe", **WIDE), tmp_path)
    rounded, plain = fused(path, 0, slice(0, 64), name), fused(path, 0, slice(0, 64))
    assert isinstance(rounded, PackedExperts)
    assert isinstance(plain, PlainExperts)
    x, ids = torch.randn(4, 64, generator=torch.Generator().manual_seed(3)), torch.tensor([[0, 1]] * 4)
    expected = plain(x, ids, torch.full((4, 2), 0.5))
    error = (rounded(x, ids, torch.full((4, 2), 0.5)) - expected).abs().max() / expected.abs().max()
    assert 0 < error < (0.03 if name == "int8" else 0.4)


def test_experts_that_no_kernel_takes_are_made_plain(tmp_path):
    """A rank's part of inputs in any order; and a checkpoint that left one projection of all experts unquantized."""
    path = save(make_model("moe", **WIDE), tmp_path / "a")
    quantize(path, "gptq-act-order")
    parts = [fused(path, 0, slice(start, start + 32)) for start in (0, 32)]
    assert all(isinstance(part, PlainExperts) for part in parts)
    x, ids = torch.randn(4, 64, generator=torch.Generator().manual_seed(3)), torch.tensor([[0, 1], [5, 7]] * 2)
    shares = torch.full((4, 2), 0.5)
    whole = fused(path, 0, slice(0, 64))(x, ids, shares)
    assert (sum(part(x, ids, shares) for part in parts) - whole).abs().max() < 1e-4 * whole.abs().max()
    path = save(make_model("moe", **WIDE), tmp_path / "b")
    quantize(path, "fp8-block", skip=("down_proj",))
    assert isinstance(fused(path, 0, slice(0, 64)), PlainExperts)
