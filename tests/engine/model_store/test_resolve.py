"""What ``--model`` can be, and one clear line for what it cannot."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from engine.model_store import ModelStoreError, resolve
from engine.model_store.errors import ModelNotFound


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def gguf(path: Path) -> Path:
    path.write_bytes(b"GGUF\x03\x00\x00\x00")
    return path


def test_hash_lm_needs_no_file() -> None:
    assert resolve("hash-lm").kind == "hash-lm"


def test_gguf_file(tmp_path: Path) -> None:
    found = resolve(str(gguf(tmp_path / "m-q4.gguf")))
    assert (found.kind, found.name, found.path) == ("gguf", "m-q4", tmp_path / "m-q4.gguf")


def test_directory_with_safetensors(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    (tmp_path / "m" / "model-00001-of-00002.safetensors").write_bytes(b"")
    assert resolve(str(tmp_path / "m")).kind == "safetensors"
    assert resolve(str(tmp_path / "m")).name == "m"


def test_directory_with_one_gguf(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    gguf(tmp_path / "m" / "a.gguf")
    assert resolve(str(tmp_path / "m")).path.name == "a.gguf"
    gguf(tmp_path / "m" / "b.gguf")
    with pytest.raises(ModelNotFound, match=r"2 \.gguf files"):
        resolve(str(tmp_path / "m"))


def test_alias_in_the_cache_by_size(home: Path) -> None:
    (home / "models").mkdir(parents=True)
    path = home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    with open(path, "wb") as file:
        file.truncate(98_362_432)
    assert resolve("SmolLM2-135M").path == path


@pytest.mark.parametrize("name", ["nonsense", "./missing.gguf", "/no/such/dir", "a/b/c", ""])
def test_unknown_names_are_one_line(name: str) -> None:
    with pytest.raises(ModelStoreError) as error:
        resolve(name)
    assert "\n" not in str(error.value)


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "fake.gguf").write_text("hello")
    (tmp_path / "x.bin").write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.json").write_text("{}")
    for name in ("fake.gguf", "x.bin", "empty", "half"):
        with pytest.raises(ModelNotFound):
            resolve(str(tmp_path / name))


def test_a_hub_id_without_the_hub_package_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelNotFound, match=r"pip install 'callgate\[hub\]'"):
        resolve("org/name")


def test_a_hub_id_without_network_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelStoreError) as error:
        resolve("org/name-that-is-not-there")
    assert "\n" not in str(error.value)
