"""AWQ, GPTQ and FP8 checkpoints against transformers with the weights that they stand for."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.distributed import TensorParallel
from engine.kernels.quant_weight import QuantWeight, dequantize, quant_linear_ref
from engine.kernels.triton.quant_linear import quant_linear, refuses
from engine.quantization.awq import read_awq
from engine.quantization.base import Shard
from engine.quantization.fp8 import read_fp8
from engine.quantization.gptq import read_gptq
from engine.quantization.packed import PackedLinear, PackedLinearMethod
from engine.weights.checkpoint import open_checkpoint
from engine.weights.errors import WeightsError
from engine.weights.torch_loader import WeightLoader
from tests.engine.executor.driver import load, run_whole
from tests.engine.models.tiny import make_model, random_tokens, reference_logits, save
from tests.engine.quantization.checkpoints import FORMATS, quantize

READERS = {"awq": read_awq, "gptq": read_gptq, "fp8": read_fp8}
CPU = torch.device("cpu")


def loader(path, dtype=torch.float32) -> WeightLoader:
    return WeightLoader(open_checkpoint(path), dtype=dtype, device=CPU)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("variant", ["qwen3", "qwen2", "moe"])
def test_logits_are_those_of_the_dequantized_model(form, variant, tmp_path):
    model = make_model(variant, num_hidden_layers=2)
    plain = quantize(save(model, tmp_path), form)
    tokens = random_tokens(40)
    before = reference_logits(model, tokens)
    if variant == "moe":
        _load_experts(plain, model)
    model.load_state_dict(plain, strict=False)
    expected = reference_logits(model, tokens)
    assert (expected - before).abs().max() > 0.01, "quantization changes something"
    assert (run_whole(load(tmp_path), tokens) - expected).abs().max() <= 1e-4


def _load_experts(plain, model) -> None:
    """transformers holds experts fused in memory, and apart in files."""
    for index, layer in enumerate(model.model.layers):
        prefix = f"model.layers.{index}.mlp.experts"
        with torch.no_grad():
            for expert in range(model.config.num_experts):
                parts = [plain[f"{prefix}.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")]
                layer.mlp.experts.gate_up_proj[expert].copy_(torch.cat(parts[:2]))
                layer.mlp.experts.down_proj[expert].copy_(parts[2])


def test_modules_left_unquantized(tmp_path):
    """A skipped projection inside a merged linear: the others of it are quantized."""
    model = make_model("qwen3", num_hidden_layers=1)
    plain = quantize(save(model, tmp_path), "fp8-block", skip=("k_proj", "down_proj"))
    model.load_state_dict(plain, strict=False)
    tokens = random_tokens(20)
    assert (run_whole(load(tmp_path), tokens) - reference_logits(model, tokens)).abs().max() <= 1e-4


@pytest.mark.parametrize("form", FORMATS)
def test_ranks_read_their_own_part(form, tmp_path):
    """Rows of a column-parallel, columns of a row-parallel linear; block and group borders included."""
    plain = quantize(save(make_model("qwen3", num_hidden_layers=1, intermediate_size=128), tmp_path), form)
    weights = loader(tmp_path)
    config = weights.config.quantization
    up, down = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"
    for rank in range(2):
        part = TensorParallel(rank, 2).share(128, "x")
        for shard, expected in (
            (Shard(up, part), plain[f"{up}.weight"][part]),
            (Shard(down, columns=part), plain[f"{down}.weight"][:, part]),
        ):
            got = READERS[config.method](weights, config, shard)
            values = dequantize(got) if isinstance(got, QuantWeight) else got
            assert (values - expected).abs().max() < 1e-6


@pytest.mark.parametrize("form", FORMATS)
def test_the_packed_form_is_what_the_kernel_multiplies(form, tmp_path):
    plain = quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), form)
    weights = loader(tmp_path)
    config = weights.config.quantization
    name = "model.layers.0.mlp.gate_proj"
    weight = READERS[config.method](weights, config, Shard(name))
    assert refuses(weight) is None
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(0))
    expected = x @ plain[f"{name}.weight"].T
    assert (quant_linear_ref(x, weight) - expected).abs().max() < 1e-4
    assert (quant_linear(x, weight) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("form", ["awq", "gptq-act-order", "fp8-block"])
def test_merged_linears_join_their_packed_parts(form, tmp_path):
    """What a GPU loads, on the CPU: q, k and v as one packed matrix with its bias."""
    plain = quantize(save(make_model("qwen2", num_hidden_layers=1), tmp_path), form)
    weights = loader(tmp_path)
    config = weights.config.quantization
    read = READERS[config.method]
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    method = PackedLinearMethod(config, read)
    bias = torch.cat([plain[f"{name}.bias"] for name in names])
    op = method._packed(weights, [read(weights, config, Shard(name)) for name in names], bias)
    assert isinstance(op, PackedLinear)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    expected = x @ torch.cat([plain[f"{name}.weight"] for name in names]).T + bias
    assert (op(x) - expected).abs().max() < 1e-4


def test_parts_with_inputs_in_different_orders_are_made_plain(tmp_path):
    """No model should have them in one merged linear; the result is right all the same."""
    plain = quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), "gptq-act-order")
    weights = loader(tmp_path)
    config = weights.config.quantization
    method = PackedLinearMethod(config, read_gptq)
    names = ["model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"]
    op = method._packed(weights, [read_gptq(weights, config, Shard(name)) for name in names], None)
    assert not isinstance(op, PackedLinear)
    assert method.pack(weights, [Shard(name) for name in names]) is None
    assert method.pack(weights, [Shard(name) for name in names], 2).order.shape == (2, 64)
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    assert (op(x) - x @ torch.cat([plain[f"{name}.weight"] for name in names]).T).abs().max() < 1e-4


def test_a_rank_that_would_cut_a_group_is_refused(tmp_path):
    quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), "awq")
    weights = loader(tmp_path)
    with pytest.raises(ValueError, match="cut its groups of 32"):
        read_awq(weights, weights.config.quantization, Shard("model.layers.0.mlp.down_proj", columns=slice(0, 48)))


@pytest.mark.parametrize(
    ("form", "name", "change", "message"),
    [
        ("awq", "self_attn.q_proj.qweight", lambda t: t.float(), "has dtype F32, expected I32"),
        ("awq", "mlp.up_proj.scales", lambda t: t.to(torch.int32), "has dtype I32, expected floats"),
        ("fp8-block", "mlp.up_proj.weight", lambda t: t.float(), "expected F8_E4M3"),
        ("fp8-tensor", "mlp.up_proj.weight_scale", lambda t: torch.ones(2), "has shape"),
        ("gptq", "mlp.up_proj.g_idx", None, "g_idx is missing"),
        ("gptq", "input_layernorm.weight", lambda t: t.to(torch.int32), "expected floats"),
    ],
)
def test_damaged_checkpoints_are_one_line(form, name, change, message, tmp_path):
    quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), form)
    path, full = tmp_path / "model.safetensors", f"model.layers.0.{name}"
    tensors = load_file(path)
    if change is None:
        del tensors[full]
    else:
        tensors[full] = change(tensors[full])
    save_file(tensors, path)
    with pytest.raises(WeightsError, match=message) as error:
        open_checkpoint(tmp_path)
    assert "\n" not in str(error.value)


def test_g_idx_outside_its_groups_is_refused(tmp_path):
    quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), "gptq")
    path, name = tmp_path / "model.safetensors", "model.layers.0.mlp.up_proj.g_idx"
    tensors = load_file(path)
    tensors[name][5] = 99
    save_file(tensors, path)
    with pytest.raises(WeightsError, match="g_idx"):
        load(tmp_path)


def test_linears_that_cannot_be_packed_are_refused(tmp_path):
    quantize(save(make_model("qwen3", num_hidden_layers=1), tmp_path), "fp8-tensor")
    config = tmp_path / "config.json"
    config.write_text(
        config.read_text().replace('"quant_method": "fp8"', '"quant_method": "awq", "bits": 4, "group_size": 128')
    )
    with pytest.raises(WeightsError, match="in groups of 128 cannot be packed by awq"):
        open_checkpoint(tmp_path)
