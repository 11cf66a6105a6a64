from __future__ import annotations

import json
from dataclasses import replace

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from engine.weights.checkpoint import open_checkpoint
from engine.weights.errors import WeightsError
from engine.weights.hf_config import config_from_hf
from engine.weights.layout import expected_tensors
from engine.weights.rope import rope_frequencies
from tests.engine.weights.files import (
    CONFIG,
    gguf_name,
    permute_for_gguf,
    random_tensors,
    write_gguf,
    write_safetensors,
)

GGUF_METADATA = {
    "vocab_size": 40,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "block_count": 2,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 128,
    "attention.layer_norm_rms_epsilon": 2.0**-17,
}


def hf_config(architecture: str, **changes):
    raw = {
        **CONFIG,
        "model_type": architecture,
        "architectures": None,
        "intermediate_size": 64,
        "rms_norm_eps": 2.0**-17,
    }
    return {**raw, "head_dim": 8, **changes}


def write_directory(path, config, tensors):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    write_safetensors(path / "model.safetensors", tensors)
    return path


def write_gguf_model(path, architecture, tensors, *, kind=Q.F32, **metadata):
    stored = {}
    for name, array in tensors.items():
        if architecture == "llama" and ".q_proj." in name:
            array = permute_for_gguf(array, 4)
        if architecture == "llama" and ".k_proj." in name:
            array = permute_for_gguf(array, 2)
        stored[gguf_name(name)] = (array, kind if array.ndim == 2 else Q.F32)
    keys = {f"{architecture}.{key}": value for key, value in {**GGUF_METADATA, **metadata}.items()}
    return write_gguf(path, architecture, {key: value for key, value in keys.items() if value is not None}, stored)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_and_safetensors_of_one_model_read_alike(architecture, tied, tmp_path):
    config = hf_config(architecture, tie_word_embeddings=tied)
    tensors = random_tensors(expected_tensors(config_from_hf(config, "x")))
    directory = open_checkpoint(write_directory(tmp_path / "hf", config, tensors))
    path = write_gguf_model(tmp_path / "m.gguf", architecture, tensors, **{"attention.key_length": 8})
    file = open_checkpoint(path)
    assert file.config == directory.config
    assert (directory.format, file.format) == ("safetensors", "gguf")
    assert file.tensor_names() == directory.tensor_names() == tuple(tensors)
    for name, array in tensors.items():
        assert np.array_equal(directory.read(name), array)
        assert np.array_equal(file.read(name), array), name
        assert np.array_equal(file.read(name, slice(3, 7)), array[3:7]), name
        assert file.raw(name).shape == file.shape(name) == array.shape


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q4_0, Q.F16, Q.BF16], ids=lambda kind: kind.name)
def test_stored_blocks_come_in_hugging_face_row_order(kind, tmp_path):
    """Rows are permuted without dequantizing: quantize-then-permute equals permute-then-quantize."""
    tensors = random_tensors(expected_tensors(config_from_hf(hf_config("llama"), "x")))
    checkpoint = open_checkpoint(write_gguf_model(tmp_path / "m.gguf", "llama", tensors, kind=kind))
    for name, array in tensors.items():
        if array.ndim == 2:
            blocks = gguf.quants.quantize(array, kind).view(np.uint8).reshape(array.shape[0], -1)
            raw = checkpoint.raw(name)
            assert raw.type == kind.name
            assert np.array_equal(raw.data, blocks), name
            assert np.array_equal(checkpoint.read(name), raw.to_float32())


def test_biases_of_a_permuted_projection_follow_its_rows(tmp_path):
    config = hf_config("llama", attention_bias=True)
    tensors = random_tensors(expected_tensors(config_from_hf(config, "x")))
    checkpoint = open_checkpoint(write_gguf_model(tmp_path / "m.gguf", "llama", tensors))
    assert checkpoint.config.qkv_bias
    assert checkpoint.config.o_bias
    for name, array in tensors.items():
        assert np.array_equal(checkpoint.read(name), array), name


def gguf_model(tmp_path, **metadata):
    tensors = random_tensors(expected_tensors(config_from_hf(hf_config("llama"), "x")))
    return write_gguf_model(tmp_path / "m.gguf", "llama", tensors, **metadata)


def test_gguf_rope_scaling(tmp_path):
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    wanted = config_from_hf(hf_config("llama", rope_scaling=yarn), "x")
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    path = gguf_model(tmp_path, **{f"rope.scaling.{key}": value for key, value in scaling.items()})
    config = open_checkpoint(path).config
    (mine, scale), (theirs, their_scale) = rope_frequencies(config), rope_frequencies(wanted)
    assert np.array_equal(mine, theirs)
    assert scale == pytest.approx(their_scale)
    linear = open_checkpoint(gguf_model(tmp_path, **{"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}))
    plain = rope_frequencies(replace(wanted, rope=replace(wanted.rope, type="default")))[0]
    assert np.array_equal(rope_frequencies(linear.config)[0], plain / 2)
    with pytest.raises(WeightsError, match="longrope"):
        open_checkpoint(gguf_model(tmp_path, **{"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}))


def test_llama3_scaling_stored_as_frequency_factors(tmp_path):
    """llama.cpp's converter stores llama3 scaling as divisors of the frequencies."""
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaled = config_from_hf(hf_config("llama", rope_scaling={**llama3, "original_max_position_embeddings": 64}), "x")
    plain = config_from_hf(hf_config("llama"), "x")
    factors = rope_frequencies(plain)[0] / rope_frequencies(scaled)[0]
    assert factors.max() == pytest.approx(8.0)
    tensors = random_tensors(expected_tensors(plain))
    path = write_gguf_model(tmp_path / "m.gguf", "llama", tensors)
    stored = {name: (t.to_float32(), Q.F32) for name, t in gguf_tensors(path).items()}
    stored["rope_freqs.weight"] = (factors, Q.F32)
    metadata = {f"llama.{key}": value for key, value in GGUF_METADATA.items()}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "f.gguf", "llama", metadata, stored))
    assert np.allclose(rope_frequencies(checkpoint.config)[0], rope_frequencies(scaled)[0], rtol=1e-6)


def gguf_tensors(path):
    from engine.weights.gguf_file import GGUFFile

    return GGUFFile(path).tensors


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"embedding_length": None}, r"llama\.embedding_length is missing"),
        ({"block_count": "two"}, "not one number"),
        ({"block_count": 3}, r"layers\.2.*is missing"),
        ({"feed_forward_length": 48}, r"has shape \(64, 32\), expected \(48, 32\)"),
        ({"rope.dimension_count": 4}, "partial"),
        ({"attention.head_count": 0}, "num_heads is 0"),
        ({"context_length": float("nan")}, "damaged or not supported"),
        ({"block_count": float("inf")}, "damaged or not supported"),
        ({"rope.freq_base": float("inf")}, "rope theta inf"),
    ],
)
def test_gguf_metadata_that_does_not_fit(metadata, message, tmp_path):
    with pytest.raises(WeightsError, match=message):
        open_checkpoint(gguf_model(tmp_path, **metadata))


def test_unknown_gguf_architecture_names_the_known_ones(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", "mamba", {}, {"x": (np.ones((2, 32), np.float32), Q.F32)})
    with pytest.raises(WeightsError, match=r"'mamba' is not supported; supported are .*qwen2"):
        open_checkpoint(path)


def test_foreign_tensors_are_refused_not_ignored(tmp_path):
    """A tensor nobody reads means that the model is another than the one we would run."""
    tensors = random_tensors(expected_tensors(config_from_hf(hf_config("llama"), "x")))
    path = write_gguf_model(tmp_path / "m.gguf", "llama", tensors)
    stored = {name: (t.to_float32(), Q.F32) for name, t in gguf_tensors(path).items()}
    stored["blk.0.ffn_gate_exps.weight"] = (np.ones((2, 32), np.float32), Q.F32)
    metadata = {f"llama.{key}": value for key, value in GGUF_METADATA.items()}
    with pytest.raises(WeightsError, match="ffn_gate_exps"):
        open_checkpoint(write_gguf(tmp_path / "x.gguf", "llama", metadata, stored))


def test_split_gguf(tmp_path):
    tensors = random_tensors(expected_tensors(config_from_hf(hf_config("llama"), "x")))
    whole = write_gguf_model(tmp_path / "whole.gguf", "llama", tensors)
    stored = [(name, (t.to_float32(), Q.F32)) for name, t in gguf_tensors(whole).items()]
    metadata = {f"llama.{key}": value for key, value in GGUF_METADATA.items()}
    first = write_gguf(tmp_path / "m-00001-of-00002.gguf", "llama", metadata, dict(stored[:7]))
    with pytest.raises(WeightsError, match=r"m-00002-of-00002\.gguf of this split model is missing"):
        open_checkpoint(first)
    write_gguf(tmp_path / "m-00002-of-00002.gguf", "llama", {}, dict(stored[7:]))
    split = open_checkpoint(first)
    assert all(np.array_equal(split.read(name), array) for name, array in tensors.items())


def test_paths_that_are_no_model(tmp_path):
    with pytest.raises(WeightsError, match=r"config\.json: cannot be read"):
        open_checkpoint(tmp_path)
    with pytest.raises(WeightsError, match="No such file"):
        open_checkpoint(tmp_path / "none")
    (tmp_path / "m.bin").write_bytes(b"\x80\x04N.")  # a pickle
    with pytest.raises(WeightsError, match="not a GGUF file"):
        open_checkpoint(tmp_path / "m.bin")


def test_missing_or_broken_config_json(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", random_tensors({"a": (2, 2)}))
    with pytest.raises(WeightsError, match=r"config\.json: cannot be read"):
        open_checkpoint(tmp_path)
    for text in ("", "{", "[]", "\x00"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(WeightsError, match=r"config\.json"):
            open_checkpoint(tmp_path)


def test_missing_tensor_and_wrong_shape(tmp_path):
    config = hf_config("qwen2")
    tensors = random_tensors(expected_tensors(config_from_hf(config, "x")))
    name = "model.layers.1.self_attn.k_proj.bias"
    without = {key: array for key, array in tensors.items() if key != name}
    with pytest.raises(WeightsError, match=f"{name} is missing"):
        open_checkpoint(write_directory(tmp_path / "a", config, without))
    with pytest.raises(WeightsError, match=r"has shape \(1, 2\)"):
        open_checkpoint(write_directory(tmp_path / "b", config, {**tensors, name: np.ones((1, 2))}))


def test_an_untied_config_without_a_head_is_tied(tmp_path):
    config = hf_config("llama", tie_word_embeddings=True)
    tensors = random_tensors(expected_tensors(config_from_hf(config, "x")))
    path = write_directory(tmp_path / "a", {**config, "tie_word_embeddings": False}, tensors)
    assert open_checkpoint(path).config.tie_word_embeddings


def test_reading_after_pages_were_released(tmp_path):
    checkpoint = open_checkpoint(gguf_model(tmp_path))
    before = checkpoint.read("model.norm.weight")
    checkpoint.release_pages()
    assert np.array_equal(checkpoint.read("model.norm.weight"), before)
    with pytest.raises(WeightsError, match="is missing"):
        checkpoint.read("nothing")
