"""One stored tensor: its bytes where they lie in the mapped file, and how to make float32 of them."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from engine.weights.errors import WeightsError

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]

_DEQUANTIZE_ROWS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A tensor as stored.

    type: ggml's name (F32, F16, BF16, Q8_0, Q4_K ...). shape: logical, row-major, as PyTorch prints it.
    data: uint8 [rows, bytes per row] where rows is shape[0], or [1, bytes] for one dimension; a view into the
    mapped file, read-only. A row of a quantized tensor is a whole number of blocks along the last axis.
    """

    type: str
    shape: tuple[int, ...]
    data: ByteArray

    def to_float32(self) -> FloatArray:
        """Dequantized copy of this shape. Large tensors go through slices, so that the temporaries of a
        256k-row embedding do not need several times its size."""
        kind = GGMLQuantizationType[self.type]
        out = np.empty((self.data.shape[0], int(np.prod(self.shape)) // max(self.data.shape[0], 1)), dtype=np.float32)
        step = max(1, _DEQUANTIZE_ROWS_BYTES // max(1, out.shape[1] * 4))
        for start in range(0, out.shape[0], step):
            rows = np.ascontiguousarray(self.data[start : start + step])
            out[start : start + step] = dequantize(rows, kind).reshape(-1, out.shape[1])
        return out.reshape(self.shape)

    def rows(self, start: int, stop: int) -> RawTensor:
        """Rows ``start:stop`` of a matrix, still stored as they were."""
        return replace(self, shape=(stop - start, *self.shape[1:]), data=self.data[start:stop])

    def permuted(self, order: npt.NDArray[np.int64]) -> RawTensor:
        """A copy with rows (or, in one dimension, elements) in another order."""
        if len(self.shape) > 1:
            return replace(self, data=self.data[order])
        items = self.data.reshape(self.shape[0], -1)
        return replace(self, data=np.ascontiguousarray(items[order]).reshape(1, -1))


def bytes_per_row(type_name: str, columns: int, source: str) -> int:
    """Stored size of ``columns`` values; WeightsError where they are no whole number of blocks."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    if columns % block:
        raise WeightsError(f"{source}: {columns} columns are no multiple of the {type_name} block of {block}")
    return columns // block * size


def make_tensor(type_name: str, shape: tuple[int, ...], data: ByteArray) -> RawTensor:
    """``data`` is flat and has exactly the bytes of this shape and type."""
    rows = shape[0] if len(shape) > 1 else 1
    return RawTensor(type_name, shape, data.reshape(rows, -1))


class MappedFile:
    """A file mapped read-only. Tensors are views into it; the mapping lives as long as they do."""

    def __init__(self, path: Path) -> None:
        try:
            with path.open("rb") as handle:
                self.size = handle.seek(0, 2)
                if self.size == 0:
                    raise WeightsError(f"{path}: the file is empty")
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error.strerror or error})") from None
        self.path = path
        self.data: ByteArray = np.frombuffer(self._map, dtype=np.uint8)

    def release_pages(self) -> None:
        """Tell the kernel that the pages read so far need not stay resident; reading again is still right."""
        if hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)
