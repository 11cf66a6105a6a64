from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.weights.errors import WeightsError
from engine.weights.safetensors_file import SafetensorsFile, open_safetensors
from tests.engine.weights.files import random_tensors, write_safetensors

TENSORS = random_tensors({"a": (4, 6), "b": (8,)})


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "F32"), (torch.float16, "F16"), (torch.bfloat16, "BF16")])
def test_files_of_the_library(dtype, name, tmp_path):
    tensors = {key: torch.from_numpy(array).to(dtype) for key, array in TENSORS.items()}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for key, tensor in tensors.items():
        assert file.tensors[key].type == name
        assert np.array_equal(file.tensors[key].to_float32(), tensor.float().numpy())


def edited(**changes):
    def edit(header):
        header["b"].update(changes)

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (edited(shape=[9]), "needs 36"),
        (edited(shape=[-8]), "damaged shape"),
        (edited(shape=[2.0, 4]), "damaged shape"),
        (edited(shape=[True, 8]), "damaged shape"),
        (edited(shape=None), "damaged shape"),
        (edited(dtype="F64"), "dtype F64"),
        (edited(dtype=["F32"]), "dtype"),
        (edited(dtype="I8"), "dtype I8"),
        (edited(data_offsets=[96]), "damaged shape or offsets"),
        (edited(shape=[1 << 63, 8]), "damaged shape"),
        (edited(shape=[1] * 9), "damaged shape"),
        (edited(data_offsets=[128, 96]), "has -32 bytes"),
        (edited(data_offsets=[64, 96]), "overlaps"),
        (edited(data_offsets=[1 << 40, (1 << 40) + 32]), "incomplete"),
        (edited(shape=[0], data_offsets=[96, 96]), "empty"),
        (lambda header: header.update(b=[]), "no description"),
        (lambda header: [header], "not a JSON object"),
    ],
)
def test_inconsistent_headers_are_refused(edit, message, tmp_path):
    path = write_safetensors(tmp_path / "m.safetensors", TENSORS, edit=edit)
    with pytest.raises(WeightsError, match=message) as caught:
        SafetensorsFile(path)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_an_error(tmp_path):
    size = write_safetensors(tmp_path / "whole.safetensors", TENSORS).stat().st_size
    for cut in range(1, size + 1):
        path = write_safetensors(tmp_path / "cut.safetensors", TENSORS, cut=cut)
        with pytest.raises(WeightsError):
            SafetensorsFile(path)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[1]", b'{"a": 1, "a": 2}', b"[" * 100_000, b"9" * 5_000])
def test_headers_that_are_no_json_object(text, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(WeightsError, match="header"):
        SafetensorsFile(path)


def test_a_header_longer_than_the_file(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    with pytest.raises(WeightsError, match="claims"):
        SafetensorsFile(path)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "x.bin", "sub/x.safetensors", 7, ""])
def test_shard_names_cannot_leave_the_directory(name, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(WeightsError, match="no shard file name"):
        open_safetensors(tmp_path)


@pytest.mark.parametrize("index", ["{}", '{"weight_map": {}}', '{"weight_map": []}', "nonsense"])
def test_broken_index(index, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(WeightsError, match="index"):
        open_safetensors(tmp_path)


def test_missing_shard_and_missing_tensor(tmp_path):
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    write_safetensors(tmp_path / "one.safetensors", {"a": TENSORS["a"]})
    with pytest.raises(WeightsError, match=r"two\.safetensors: cannot be read"):
        open_safetensors(tmp_path)
    write_safetensors(tmp_path / "two.safetensors", {"c": TENSORS["b"]})
    with pytest.raises(WeightsError, match="tensor b is missing"):
        open_safetensors(tmp_path)
