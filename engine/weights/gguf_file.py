"""A GGUF file's metadata and memory-mapped tensors, every offset checked before use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from gguf import GGMLQuantizationType

from engine.weights.errors import WeightsError
from engine.weights.gguf_header import DAMAGED, GGUFError, HeaderReader
from engine.weights.tensors import MappedFile, RawTensor, bytes_per_row, make_tensor

_MAX_DIMS: Final = 4
_NOT_READABLE: Final = frozenset({"F64", "I8", "I16", "I32", "I64", "Q1_0", "Q8_1", "Q8_K"})
"""Types of which the library cannot make floats."""
_TEXT_KEYS: Final = "tokenizer."
"""Hundreds of thousands of strings that weights have no use for; engine.text reads them."""

_TensorInfo = tuple[str, tuple[int, ...], str, int]
"""Name, shape, type and offset."""


class GGUFFile:
    """``metadata`` (without the tokenizer's) and ``tensors`` by their names in the file.

    Raises WeightsError for anything that is not a whole, consistent GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        self.path = path
        self.tensors: dict[str, RawTensor] = {}
        reader = HeaderReader(self.file.data.data, errors="strict")
        try:
            self.metadata: dict[str, Any] = reader.metadata(lambda key: not key.startswith(_TEXT_KEYS))
            infos = [self._tensor_info(reader) for _ in range(reader.num_tensors)]
        except GGUFError as error:
            raise WeightsError(f"{path}: {error}") from None
        except DAMAGED:
            raise WeightsError(f"{path}: the file is cut short or damaged: its header cannot be read") from None
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise WeightsError(f"{self.path}: damaged GGUF file (alignment {alignment})")
        start = -(-reader.position // alignment) * alignment
        self._map_tensors(infos, start, alignment)

    def _tensor_info(self, reader: HeaderReader) -> _TensorInfo:
        name, num_dims = reader.string(), reader.u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise WeightsError(f"{self.path}: tensor {name} has {num_dims} dimensions")
        shape = tuple(reversed([reader.u64() for _ in range(num_dims)]))
        kind, offset = reader.u32(), reader.u64()
        if 0 in shape:
            raise WeightsError(f"{self.path}: tensor {name} is empty")
        try:
            type_name = GGMLQuantizationType(kind).name
        except ValueError:
            raise WeightsError(f"{self.path}: tensor {name} has the unknown type {kind}") from None
        if type_name in _NOT_READABLE:
            raise WeightsError(f"{self.path}: tensor {name} has type {type_name}, which is not supported")
        return name, shape, type_name, offset

    def _map_tensors(self, infos: list[_TensorInfo], start: int, alignment: int) -> None:
        end_of_last, last = start, ""
        for name, shape, type_name, offset in sorted(infos, key=lambda info: info[3]):
            where = f"{self.path}: tensor {name}"
            rows = int(np.prod(shape[:-1], dtype=object)) if len(shape) > 1 else 1
            size = rows * bytes_per_row(type_name, shape[-1], where)
            begin = start + offset
            if offset % alignment or begin < end_of_last:
                raise WeightsError(f"{where} overlaps {last or 'the header'} or is not aligned")
            if begin + size > self.file.size:
                raise WeightsError(
                    f"{where} ends at byte {begin + size}, the file at {self.file.size}: the file is incomplete"
                )
            if name in self.tensors:
                raise WeightsError(f"{where} appears twice")
            self.tensors[name] = make_tensor(type_name, shape, self.file.data[begin : begin + size])
            end_of_last, last = begin + size, name

    def text(self, key: str, default: str = "") -> str:
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise WeightsError(f"{self.path}: metadata {key} is not a string")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A scalar number; WeightsError where it is missing (and has no default) or of another kind."""
        value = self.metadata.get(key, default)
        if value is None:
            raise WeightsError(f"{self.path}: metadata {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise WeightsError(f"{self.path}: metadata {key} is not one number")
        return value
