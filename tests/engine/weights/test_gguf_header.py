from __future__ import annotations

import random

import pytest

from engine.weights.gguf_header import GGUFError, is_gguf, read_metadata
from tests.engine.text.samples import gguf_bytes

VALUES = {
    "general.architecture": "qwen2",
    "n": 7,
    "x": 0.5,
    "flag": True,
    "strings": ["a", "", "ü\U0001f389"],
    "ints": [1, -2, 3],
    "floats": [0.5, -1.5],
    "flags": [True, False],
}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(VALUES))
    return path


@pytest.mark.parametrize("version", [2, 3])
def test_every_kind_of_value(tmp_path, version):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_bytes(VALUES, version))
    assert read_metadata(path) == VALUES


def test_unwanted_keys_are_skipped(file):
    for key in VALUES:
        assert read_metadata(file, wanted=lambda name, key=key: name == key) == {key: VALUES[key]}


def test_is_gguf(file, tmp_path):
    assert is_gguf(file)
    assert not is_gguf(tmp_path / "missing")
    assert not is_gguf(tmp_path)


def test_a_file_cut_anywhere_is_refused(file):
    data = file.read_bytes()
    for length in range(len(data)):
        file.write_bytes(data[:length])
        with pytest.raises(GGUFError) as caught:
            read_metadata(file)
        assert "\n" not in str(caught.value)


def test_damaged_files_are_refused_or_read_but_never_crash(file):
    rng = random.Random(1)
    data = file.read_bytes()
    messages = []
    for _ in range(500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file.write_bytes(damaged)
        try:
            read_metadata(file)
        except GGUFError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert not [message for message in messages if "\n" in message]


def test_counts_beyond_the_file_do_not_allocate(tmp_path):
    path = tmp_path / "huge.gguf"
    head = gguf_bytes({"a": [1]})
    path.write_bytes(head[:-12] + b"\xff" * 8 + head[-4:])
    with pytest.raises(GGUFError):
        read_metadata(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "empty"), (b"PK\x03\x04aaaa", "not a GGUF"), (gguf_bytes({}, 1), "version 1"), (gguf_bytes({}, 99), "99")],
)
def test_other_files_are_named(tmp_path, data, message):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(GGUFError, match=message):
        read_metadata(path)
