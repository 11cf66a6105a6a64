"""Every architecture, rope scaling and head layout against transformers, all positions, in float32."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaForCausalLM

from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.driver import Sequences, load, run_whole
from tests.engine.models.tiny import MOE_VARIANTS, VARIANTS, make_model, random_tokens, reference_logits, save

TOLERANCE = 1e-4


@pytest.mark.parametrize("variant", [*VARIANTS, *MOE_VARIANTS])
def test_logits_equal_transformers_at_all_positions(variant, tmp_path):
    model = make_model(variant)
    executor = load(save(model, tmp_path))
    tokens = random_tokens(150)
    expected = reference_logits(model, tokens)
    assert expected.std() > 0.5
    assert (run_whole(executor, tokens) - expected).abs().max() <= TOLERANCE


@pytest.mark.parametrize("variant", ["qwen2", "qwen3", "llama-llama3", "moe"])
def test_chunks_on_shuffled_pages_equal_transformers(variant, tmp_path):
    model = make_model(variant)
    sequences = Sequences(load(save(model, tmp_path), page_size=4))
    tokens = random_tokens(70)
    chunks, start = [], 0
    for size in (1, 5, 33, 2, 29):
        chunks.append(sequences.step([("a", tokens[start : start + size], start)])[0])
        start += size
    assert (torch.cat(chunks) - reference_logits(model, tokens)).abs().max() <= TOLERANCE


def test_old_spelling_of_rope_scaling_gives_the_same_model(tmp_path):
    """transformers 4 wrote rope_theta beside rope_scaling; most checkpoints on the hub do."""
    model = make_model("llama-llama3")
    save(model, tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    scaling = config.pop("rope_parameters")
    config["rope_theta"] = scaling.pop("rope_theta")
    config["rope_scaling"] = scaling
    new = open_checkpoint(tmp_path).config
    path.write_text(json.dumps(config))
    assert open_checkpoint(tmp_path).config == new


def test_sharded_checkpoint_equals_single(tmp_path):
    model = make_model("qwen2")
    single, sharded = save(model, tmp_path / "one"), save(model, tmp_path / "many", max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    tokens = random_tokens(20)
    assert torch.equal(run_whole(load(single), tokens), run_whole(load(sharded), tokens))


def test_half_precision_weights_are_read_exactly(tmp_path):
    tokens = random_tokens(40)
    for dtype in (torch.bfloat16, torch.float16):
        path = save(make_model("llama").to(dtype), tmp_path / str(dtype))
        expected = reference_logits(LlamaForCausalLM.from_pretrained(path, dtype=torch.float32), tokens)
        assert (run_whole(load(path), tokens) - expected).abs().max() <= TOLERANCE


def test_bfloat16_run_stays_near_float32(tmp_path):
    path = save(make_model("qwen2", scale=0.1), tmp_path)
    tokens = random_tokens(100)
    full, half = run_whole(load(path), tokens), run_whole(load(path, dtype="bfloat16"), tokens)
    assert not torch.equal(full, half)
    assert (full - half).abs().max() < 0.1 * full.abs().max()
