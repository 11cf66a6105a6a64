"""The header of a GGUF file (versions 2 and 3, little-endian) as plain Python, without numpy.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Own parser, because the library's reader keeps one
array per string: 150,000 tokens and their merges take it more than ten seconds and gigabytes, this one half a second.
"""

from __future__ import annotations

import mmap
import struct
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_ARRAY_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_MAX_DEPTH = 4
_MAX_ENTRIES = 1 << 20
_U64 = struct.Struct("<Q")
DAMAGED = (struct.error, IndexError, OverflowError, UnicodeDecodeError)
"""What a HeaderReader raises where a file is cut short or damaged."""


class GGUFError(ValueError):
    """The file is not a readable GGUF file; the message fits on one line."""


def is_gguf(path: str | Path) -> bool:
    """Does the file begin with GGUF's magic bytes?"""
    try:
        with open(path, "rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_metadata(path: str | Path, wanted: Callable[[str], bool] = lambda _key: True) -> dict[str, Any]:
    """Every metadata key for which ``wanted(key)`` holds. Strings are str, arrays are lists.

    Raises GGUFError for a file that is cut short, of another version or of another format; OSError where it
    cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GGUFError(f"{path} is empty.") from None
        with data:
            try:
                return HeaderReader(data).metadata(wanted)
            except DAMAGED:
                raise GGUFError(f"{path} is cut short or damaged: its metadata cannot be read.") from None
            except GGUFError as error:
                raise GGUFError(f"{path}: {error}") from None


class HeaderReader:
    """A cursor over a mapped file: ``metadata`` first, then whatever the caller reads of the tensors' list.

    Running past the end is one of DAMAGED, never a wild read. errors: of text that is no UTF-8, as in ``bytes.decode``.
    """

    def __init__(self, data: mmap.mmap | memoryview, errors: str = "surrogateescape") -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._errors = errors
        self.num_tensors = 0

    @property
    def position(self) -> int:
        return self._at

    def metadata(self, wanted: Callable[[str], bool]) -> dict[str, Any]:
        """The values whose key is wanted. Raises GGUFError for a file of another format or version."""
        if self._data[:4] != MAGIC:
            raise GGUFError("not a GGUF file.")
        self._at = 4
        version = self.u32()
        if version not in SUPPORTED_VERSIONS:
            raise GGUFError(f"GGUF version {version} is not supported (2 and 3, little-endian, are).")
        self.num_tensors, count = self.u64(), self.u64()
        if max(self.num_tensors, count) > _MAX_ENTRIES:
            raise GGUFError(f"damaged: {self.num_tensors} tensors, {count} metadata keys.")
        values: dict[str, Any] = {}
        for _ in range(count):
            key, kind = self.string(), self.u32()
            if wanted(key):
                values[key] = self._value(kind, 0)
            else:
                self._skip(kind, 0)
        return values

    def u32(self) -> int:
        return int(self._scalar("<I"))

    def u64(self) -> int:
        return int(self._scalar("<Q"))

    def string(self) -> str:
        start = self._advance(self.u64())
        return str(self._data[start : self._at], "utf-8", self._errors)

    def _scalar(self, fmt: str) -> Any:
        (value,) = struct.unpack_from(fmt, self._data, self._at)
        self._at += struct.calcsize(fmt)
        return value

    def _advance(self, size: int) -> int:
        """Move past ``size`` bytes and return where they began."""
        start = self._at
        if size > self._size - start:
            raise IndexError("past the end")
        self._at = start + size
        return start

    def _value(self, kind: int, depth: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(depth + 1)
        if kind not in _SCALARS:
            raise GGUFError(f"unknown metadata type {kind}.")
        return self._scalar(_SCALARS[kind])

    def _array(self, depth: int) -> list[Any]:
        kind, count = self._array_header(depth)
        if kind == _STRING:
            return self._strings(count)
        if kind == _ARRAY:
            return [self._array(depth + 1) for _ in range(count)]
        values = array(_ARRAY_CODES[kind])
        start = self._advance(count * struct.calcsize(_SCALARS[kind]))
        values.frombytes(self._data[start : self._at])
        return [bool(value) for value in values] if kind == _BOOL else values.tolist()

    def _array_header(self, depth: int) -> tuple[int, int]:
        if depth > _MAX_DEPTH:
            raise GGUFError("metadata arrays are nested too deeply.")
        kind, count = self.u32(), self.u64()
        if kind not in _SCALARS and kind not in (_STRING, _ARRAY):
            raise GGUFError(f"unknown metadata type {kind}.")
        if count > self._size:
            raise IndexError("past the end")
        return kind, count

    def _strings(self, count: int) -> list[str]:
        """The hot loop: hundreds of thousands of length-prefixed strings."""
        data, at, size, errors, unpack = self._data, self._at, self._size, self._errors, _U64.unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > size:
                raise IndexError("past the end")
            strings.append(str(data[start:at], "utf-8", errors))
        self._at = at
        return strings

    def _skip(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._advance(self.u64())
        elif kind == _ARRAY:
            self._skip_array(depth + 1)
        elif kind in _SCALARS:
            self._advance(struct.calcsize(_SCALARS[kind]))
        else:
            raise GGUFError(f"unknown metadata type {kind}.")

    def _skip_array(self, depth: int) -> None:
        kind, count = self._array_header(depth)
        if kind == _STRING:
            self._skip_strings(count)
        elif kind == _ARRAY:
            for _ in range(count):
                self._skip(kind, depth)
        else:
            self._advance(count * struct.calcsize(_SCALARS[kind]))

    def _skip_strings(self, count: int) -> None:
        data, at, unpack = self._data, self._at, _U64.unpack_from
        for _ in range(count):
            at += 8 + unpack(data, at)[0]
        self._at = at
        self._advance(0)  # the last one may end past the end
