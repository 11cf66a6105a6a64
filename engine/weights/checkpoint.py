"""``open_checkpoint(path)``: a .gguf file or a safetensors directory, checked whole before any weight is used."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from engine.weights.config import ModelConfig
from engine.weights.errors import WeightsError
from engine.weights.gguf_config import canonical_tensors, config_from_gguf, unpermute
from engine.weights.gguf_file import GGUFFile
from engine.weights.hf_config import config_from_hf
from engine.weights.layout import expected_tensors, linear_shapes
from engine.weights.quantization import PACKED_TYPES
from engine.weights.safetensors_file import open_safetensors, read_json_object
from engine.weights.tensors import FloatArray, MappedFile, RawTensor

_SPLIT: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_IGNORED: Final = re.compile(r".*\.rotary_emb\.inv_freq")


class Checkpoint:
    """A model's config and its tensors under Hugging Face names, memory-mapped.

    ``read`` gives float32 in Hugging Face layout, whatever the file's type and row order; ``raw`` gives the
    stored blocks in the same row order, for kernels that compute on them as they are.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: dict[str, RawTensor],
        files: Sequence[MappedFile],
        *,
        row_orders: dict[str, npt.NDArray[np.int64]] | None = None,
        format_name: str = "safetensors",
    ) -> None:
        self.config = config
        self.format = format_name
        self._tensors = tensors
        self._files = tuple(files)
        self._row_orders = row_orders or {}
        self._linears = linear_shapes(config)
        self._check()

    def _check(self) -> None:
        source = self._files[0].path
        expected = expected_tensors(self.config)
        for name, shape in expected.items():
            if name not in self._tensors:
                raise WeightsError(f"{source}: tensor {name} is missing")
            if self._tensors[name].shape != shape:
                raise WeightsError(f"{source}: tensor {name} has shape {self._tensors[name].shape}, expected {shape}")
            self._check_type(name, source)
        self._tensors = {name: self._tensors[name] for name in expected}

    def _check_type(self, name: str, source: Path) -> None:
        module, _, suffix = name.rpartition(".")
        quantization, found = self.config.quantization, self._tensors[name].type
        wanted = None
        if quantization is not None and module in self._linears and quantization.covers(module):
            wanted = quantization.stored_type(suffix)
        if found != wanted if wanted is not None else found in PACKED_TYPES:
            raise WeightsError(f"{source}: tensor {name} has dtype {found}, expected {wanted or 'floats'}")

    def permissions(self) -> int:
        """Mode bits that all files of it have: who may read and write it."""
        bits = 0o666
        for file in self._files:
            bits &= file.path.stat().st_mode
        return bits

    def tensor_names(self) -> tuple[str, ...]:
        """Exactly the tensors that this config's model has, in the order of its layers."""
        return tuple(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.stored(name).shape

    def raw(self, name: str) -> RawTensor:
        """Stored type and bytes, rows in Hugging Face order; a view unless rows had to be reordered."""
        tensor = self.stored(name)
        order = self._row_orders.get(name)
        return tensor if order is None else tensor.permuted(order)

    def read(self, name: str, rows: slice | None = None) -> FloatArray:
        """Float32 copy of a tensor, or of ``rows`` (start:stop, no step) along its first axis."""
        tensor = self.raw(name)
        if rows is None:
            return tensor.to_float32()
        if len(tensor.shape) == 1:
            return tensor.to_float32()[rows]
        start, stop, _ = rows.indices(tensor.shape[0])
        return tensor.rows(start, stop).to_float32()

    def linear_shape(self, module: str) -> tuple[int, int]:
        """(outputs, inputs) of a linear, however its weight is stored."""
        if module not in self._linears:
            raise WeightsError(f"{self._files[0].path}: this model has no {module}")
        return self._linears[module]

    def release_pages(self) -> None:
        """Give back the memory of file pages read so far (they count as resident until then)."""
        for file in self._files:
            file.release_pages()

    def stored(self, name: str) -> RawTensor:
        if name not in self._tensors:
            raise WeightsError(f"{self._files[0].path}: tensor {name} is missing")
        return self._tensors[name]


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a .gguf file, or a directory with config.json and safetensors: what ``engine.model_store.resolve`` finds.

    Raises WeightsError, one line, for anything missing, damaged or unsupported. Reads no weight yet.
    """
    path = Path(path)
    try:
        return _open_safetensors(path) if path.is_dir() else _open_gguf(path)
    except WeightsError:
        raise
    except (ArithmeticError, NotImplementedError, TypeError, ValueError) as error:
        raise WeightsError(f"{path}: damaged or not supported ({error})") from error


def _open_safetensors(path: Path) -> Checkpoint:
    config = config_from_hf(read_json_object(path / "config.json"), str(path / "config.json"))
    shards = open_safetensors(path)
    tensors: dict[str, RawTensor] = {}
    for shard in shards:
        for name, tensor in shard.tensors.items():
            if name in tensors:
                raise WeightsError(f"{shard.path}: tensor {name} is in two files")
            if not _IGNORED.fullmatch(name):
                tensors[name] = tensor
    return Checkpoint(_resolve_tied(config, tensors), tensors, [shard.file for shard in shards])


def _resolve_tied(config: ModelConfig, tensors: dict[str, RawTensor]) -> ModelConfig:
    """Some exporters leave tie_word_embeddings at its default: what the file holds decides."""
    if not config.tie_word_embeddings and "lm_head.weight" not in tensors and "model.embed_tokens.weight" in tensors:
        return replace(config, tie_word_embeddings=True)
    return config


def _open_gguf(path: Path) -> Checkpoint:
    files = [GGUFFile(part) for part in _gguf_parts(path)]
    first = files[0]
    for other in files[1:]:
        repeated = first.tensors.keys() & other.tensors.keys()
        if repeated:
            raise WeightsError(f"{other.path}: tensor {min(repeated)} is in two files")
        first.tensors.update(other.tensors)
    config = config_from_gguf(first)
    tensors = canonical_tensors(first, config)
    orders = {name: order for name in tensors if (order := unpermute(name, config)) is not None}
    mapped = [file.file for file in files]
    return Checkpoint(config, tensors, mapped, row_orders=orders, format_name="gguf")


def _gguf_parts(path: Path) -> list[Path]:
    """All parts of a split GGUF (name-00001-of-00003.gguf), in order; the file itself where it is not split."""
    match = _SPLIT.fullmatch(path.name)
    if not match:
        return [path]
    parts = [path.with_name(f"{match[1]}-{i:05d}-of-{match[3]}.gguf") for i in range(1, int(match[3]) + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise WeightsError(f"{path}: part {missing[0]} of this split model is missing")
    return parts
