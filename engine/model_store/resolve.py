"""``--model`` to a path: alias, hub id, directory, .gguf file, or the test model ``hash-lm``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.model_store.cache import cached_path
from engine.model_store.catalog import CATALOG, find_entry
from engine.model_store.errors import ModelNotFound
from engine.model_store.hub import fetch_snapshot
from engine.model_store.pull import PullObserver, pull

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
HASH_LM = "hash-lm"


@dataclass(frozen=True)
class ResolvedModel:
    """kind ``gguf``: path is the file. ``safetensors``: path is the directory. ``hash-lm``: path is that name.

    name is what the model is served as unless --served-model-name says otherwise.
    """

    path: Path
    kind: Literal["gguf", "safetensors", "hash-lm"]
    name: str


def resolve(model: str, *, observer: PullObserver | None = None) -> ResolvedModel:
    """Find the model, or fetch it. Raises ModelStoreError with one line that says what is wrong."""
    if model == HASH_LM:
        return ResolvedModel(Path(HASH_LM), "hash-lm", HASH_LM)
    entry = find_entry(model)
    if entry is not None:
        return ResolvedModel(cached_path(entry) or pull(entry, observer), "gguf", entry.name)
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf") and not model.startswith("."):
        found = _local(fetch_snapshot(model))
        return ResolvedModel(found.path, found.kind, model)
    aliases = ", ".join(known.name for known in CATALOG)
    raise ModelNotFound(f"no model {model!r}: no file, directory or hub id (org/name), none of {aliases}, {HASH_LM}")


def _local(path: Path) -> ResolvedModel:
    if path.is_file():
        if path.suffix != ".gguf" or not _starts_with(path, b"GGUF"):
            raise ModelNotFound(f"{path} is not a GGUF file")
        return ResolvedModel(path.resolve(), "gguf", path.stem)
    if (path / "config.json").is_file():
        if not any(path.glob("*.safetensors")):
            raise ModelNotFound(f"{path} has a config.json but no .safetensors file; pickled weights are never loaded")
        return ResolvedModel(path.resolve(), "safetensors", path.resolve().name)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _local(files[0])
    if files:
        raise ModelNotFound(f"{path} holds {len(files)} .gguf files: name one of them")
    raise ModelNotFound(f"{path} holds no model: a config.json with .safetensors, or a .gguf file, is expected")


def _starts_with(path: Path, magic: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(magic)) == magic
    except OSError as error:
        raise ModelNotFound(f"cannot read {path}: {error.strerror}") from error
