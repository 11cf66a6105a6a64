from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Q

from engine.weights.errors import WeightsError
from engine.weights.gguf_file import GGUFFile
from tests.engine.weights.files import random_blocks, random_tensors, write_gguf

WRITTEN = (Q.F32, Q.F16, Q.BF16, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0)
STORED = tuple(kind for kind in gguf.quants._type_traits if kind not in WRITTEN)


@pytest.mark.parametrize("kind", WRITTEN, ids=lambda kind: kind.name)
def test_quantized_floats_come_back_as_the_library_dequantizes_them(kind, tmp_path):
    array = random_tensors({"x": (6, 256)})["x"]
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", "llama", {}, {"x": (array, kind)}))
    tensor = file.tensors["x"]
    assert (tensor.type, tensor.shape) == (kind.name, (6, 256))
    expected = gguf.quants.dequantize(gguf.quants.quantize(array, kind), kind)
    assert np.array_equal(tensor.to_float32(), expected)
    assert np.abs(tensor.to_float32() - array).max() < 0.5


@pytest.mark.parametrize("kind", STORED, ids=lambda kind: kind.name)
def test_every_type_that_the_library_can_dequantize(kind, tmp_path):
    blocks = random_blocks(kind, 5, 512)
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", "llama", {}, {"x": (blocks, kind)}))
    tensor = file.tensors["x"]
    assert tensor.shape == (5, 512)
    assert np.array_equal(tensor.data, blocks)
    with np.errstate(all="ignore"):
        assert np.array_equal(tensor.to_float32(), gguf.quants.dequantize(blocks, kind), equal_nan=True)
        assert np.array_equal(tensor.rows(1, 3).to_float32(), tensor.to_float32()[1:3], equal_nan=True)


@pytest.mark.parametrize("kind", sorted(set(Q) - {*WRITTEN, *STORED}), ids=lambda kind: kind.name)
def test_types_that_it_cannot_dequantize_are_refused_at_once(kind, tmp_path):
    size = gguf.GGML_QUANT_SIZES[kind][1]
    path = write_gguf(tmp_path / "m.gguf", "llama", {}, {"x": (np.zeros((2, 4 * size), np.uint8), kind)})
    with pytest.raises(WeightsError, match=f"type {kind.name}, which is not supported"):
        GGUFFile(path)


def test_metadata_equals_the_librarys_reader(tmp_path):
    metadata = {
        "a.text": "grüße",
        "a.flag": True,
        "a.count": 7,
        "a.rate": 0.25,
        "a.words": ["x", "", "日本"],
        "a.numbers": [1, 2, 3],
        "a.reals": [0.5, 1.5],
    }
    path = write_gguf(tmp_path / "m.gguf", "llama", metadata, random_one())
    file = GGUFFile(path)
    reader = gguf.GGUFReader(path)
    for key in metadata:
        assert file.metadata[key] == reader.fields[key].contents()
    assert file.text("a.text") == "grüße"
    with pytest.raises(WeightsError, match=r"a\.text is not one number"):
        file.number("a.text")
    with pytest.raises(WeightsError, match=r"a\.none is missing"):
        file.number("a.none")


def random_one():
    return {"x": (random_tensors({"x": (4, 64)})["x"], Q.F32)}


@pytest.fixture
def whole(tmp_path):
    words = {"tokenizer.tokens": ["ab", "c"] * 20, "n": 3}
    return write_gguf(tmp_path / "m.gguf", "llama", words, random_one()).read_bytes()


def test_the_tokenizers_keys_are_passed_over(tmp_path):
    values = {"tokenizer.words": ["ab", "", "c"], "tokenizer.kinds": [1, 2], "tokenizer.name": "x", "tokenizer.id": 7}
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", "llama", {**values, "last": 3}, random_one()))
    assert file.number("last") == 3
    assert not [key for key in file.metadata if key.startswith("tokenizer.")]
    assert list(file.tensors) == ["x"]


def test_every_truncation_is_one_clear_error(whole, tmp_path):
    path = tmp_path / "cut.gguf"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(WeightsError) as caught:
            GGUFFile(path)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)


def test_any_damaged_header_byte_is_an_error_or_a_readable_file(whole, tmp_path):
    """Flips every byte before the tensor data: WeightsError or success, nothing else, and no wild read."""
    path = tmp_path / "flip.gguf"
    refused = 0
    for position in range(len(whole) - 4 * 64 * 4):
        for flip in (0xFF, 0x01, 0x80):
            damaged = bytearray(whole)
            damaged[position] ^= flip
            path.write_bytes(damaged)
            try:
                for tensor in GGUFFile(path).tensors.values():
                    tensor.data.sum()
            except WeightsError:
                refused += 1
    assert refused > 200


def test_foreign_files(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(200))
    with pytest.raises(WeightsError, match="not a GGUF file"):
        GGUFFile(path)
    path.write_bytes(b"GGUF\x00\x00\x00\x03" + bytes(200))
    with pytest.raises(WeightsError, match="version"):
        GGUFFile(path)
    path.write_bytes(b"")
    with pytest.raises(WeightsError, match="empty"):
        GGUFFile(path)
    with pytest.raises(WeightsError, match="cannot be read"):
        GGUFFile(tmp_path / "none.gguf")
