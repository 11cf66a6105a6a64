"""GGUF versions 2 and 3, little-endian: metadata and memory-mapped tensors, every offset checked before use.

Own parser, because the library's reader takes seconds and gigabytes for the metadata of a 150k-token
vocabulary. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from engine.weights.errors import WeightsError
from engine.weights.tensors import ByteArray, MappedFile, RawTensor, bytes_per_row, make_tensor

MetadataValue = str | int | float | bool | list[str] | npt.NDArray[np.generic]

_MAX_ENTRIES: Final = 1 << 20
_MAX_DIMS: Final = 4
_NOT_READABLE: Final = frozenset({"F64", "I8", "I16", "I32", "I64", "Q1_0", "Q8_1", "Q8_K"})
"""Types of which the library cannot make floats."""
_TEXT_KEYS: Final = "tokenizer."
"""Hundreds of thousands of strings that weights have no use for; engine.text reads them."""
_TYPE_STRING, _TYPE_ARRAY, _TYPE_BOOL = 8, 9, 7
_SCALARS: Final = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "|b1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class GGUFFile:
    """``metadata`` (scalars, strings, list[str], numpy arrays; without the tokenizer's) and ``tensors`` by their names
    in the file.

    Raises WeightsError for anything that is not a whole, consistent GGUF file.
    """

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        self.path = path
        self.metadata: dict[str, MetadataValue] = {}
        self.tensors: dict[str, RawTensor] = {}
        reader = _Reader(self.file.data, str(path))
        try:
            self._read(reader)
        except (struct.error, UnicodeDecodeError, IndexError, OverflowError, ValueError) as error:
            if isinstance(error, WeightsError):
                raise
            raise WeightsError(f"{path}: damaged GGUF file ({error})") from None

    def _read(self, reader: _Reader) -> None:
        if bytes(self.file.data[:4]) != b"GGUF":
            raise WeightsError(f"{self.path}: not a GGUF file (it does not begin with 'GGUF')")
        reader.pos = 4
        version = reader.u32()
        if version not in (2, 3):
            raise WeightsError(f"{self.path}: GGUF version {version} is not supported (2 and 3, little-endian, are)")
        num_tensors, num_entries = reader.u64(), reader.u64()
        if num_tensors > _MAX_ENTRIES or num_entries > _MAX_ENTRIES:
            raise WeightsError(f"{self.path}: damaged GGUF file ({num_tensors} tensors, {num_entries} metadata keys)")
        for _ in range(num_entries):
            key, kind = reader.string(), reader.u32()
            if key.startswith(_TEXT_KEYS):
                reader.skip(kind)
            else:
                self.metadata[key] = reader.value(kind)
        infos = [reader.tensor_info() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise WeightsError(f"{self.path}: damaged GGUF file (alignment {alignment})")
        start = -(-reader.pos // alignment) * alignment
        self._map_tensors(infos, start, alignment)

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


_TensorInfo = tuple[str, tuple[int, ...], str, int]


class _Reader:
    """A cursor over the header; running past the end raises struct.error or ValueError, never reads wild."""

    def __init__(self, data: ByteArray, source: str) -> None:
        self._data = data.data
        self._source = source
        self.pos = 0

    def u32(self) -> int:
        (value,) = struct.unpack_from("<I", self._data, self.pos)
        self.pos += 4
        return int(value)

    def u64(self) -> int:
        (value,) = struct.unpack_from("<Q", self._data, self.pos)
        self.pos += 8
        return int(value)

    def take(self, size: int) -> memoryview:
        if size > len(self._data) - self.pos:
            raise WeightsError(f"{self._source}: the file is incomplete (its header runs past the end)")
        chunk = self._data[self.pos : self.pos + size]
        self.pos += size
        return chunk

    def string(self) -> str:
        return str(self.take(self.u64()), "utf-8")

    def value(self, kind: int) -> MetadataValue:
        if kind == _TYPE_STRING:
            return self.string()
        if kind == _TYPE_ARRAY:
            return self._array()
        item = np.frombuffer(self.take(self._scalar(kind).itemsize), dtype=self._scalar(kind))[0].item()
        assert isinstance(item, int | float | bool)
        return item

    def _array(self) -> MetadataValue:
        kind, count = self.u32(), self.u64()
        if kind == _TYPE_STRING:
            return self._strings(count)
        dtype = self._scalar(kind)
        array: npt.NDArray[np.generic] = np.frombuffer(self.take(count * dtype.itemsize), dtype=dtype).copy()
        return array

    def skip(self, kind: int) -> None:
        """Move past a value."""
        if kind == _TYPE_STRING:
            self.take(self.u64())
        elif kind == _TYPE_ARRAY:
            item, count = self.u32(), self.u64()
            if item == _TYPE_STRING:
                self._skip_strings(count)
            else:
                self.take(count * self._scalar(item).itemsize)
        else:
            self.take(self._scalar(kind).itemsize)

    def _skip_strings(self, count: int) -> None:
        data, pos, unpack = self._data, self.pos, struct.Struct("<Q").unpack_from
        for _ in range(count):
            pos += 8 + unpack(data, pos)[0]
        self.pos = pos
        self.take(0)  # the last one may end past the end

    def _strings(self, count: int) -> list[str]:
        data, pos, unpack = self._data, self.pos, struct.Struct("<Q").unpack_from
        if count * 8 > len(data) - pos:
            raise WeightsError(f"{self._source}: the file is incomplete (its header runs past the end)")
        out = []
        for _ in range(count):
            (size,) = unpack(data, pos)
            pos += 8 + size
            if pos > len(data):
                raise WeightsError(f"{self._source}: the file is incomplete (its header runs past the end)")
            out.append(str(data[pos - size : pos], "utf-8"))
        self.pos = pos
        return out

    def _scalar(self, kind: int) -> np.dtype[np.generic]:
        if kind not in _SCALARS:
            raise WeightsError(f"{self._source}: damaged GGUF file (metadata type {kind})")
        return np.dtype(_SCALARS[kind])

    def tensor_info(self) -> _TensorInfo:
        name, num_dims = self.string(), self.u32()
        if not 1 <= num_dims <= _MAX_DIMS:
            raise WeightsError(f"{self._source}: tensor {name} has {num_dims} dimensions")
        shape = tuple(reversed([self.u64() for _ in range(num_dims)]))
        kind, offset = self.u32(), self.u64()
        if 0 in shape:
            raise WeightsError(f"{self._source}: tensor {name} is empty")
        try:
            type_name = GGMLQuantizationType(kind).name
        except ValueError:
            raise WeightsError(f"{self._source}: tensor {name} has the unknown type {kind}") from None
        if type_name in _NOT_READABLE:
            raise WeightsError(f"{self._source}: tensor {name} has type {type_name}, which is not supported")
        return name, shape, type_name, offset
