"""Checkpoint -> torch tensors, slice by slice, so that loading needs little more memory than the weights."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import torch

from engine.weights.checkpoint import Checkpoint

_SLICE_VALUES = 4 << 20


class WeightLoader:
    """Reads parts of tensors into new tensors of one dtype on one device.

    Use as a context manager: on exit the file's pages are given back. Slices are dequantized on ``threads``
    threads (numpy works outside the interpreter lock).
    """

    def __init__(self, checkpoint: Checkpoint, *, dtype: torch.dtype, device: torch.device, threads: int = 1) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.dtype = dtype
        self.device = device
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="weights")

    def __enter__(self) -> WeightLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self.checkpoint.release_pages()

    def has(self, name: str) -> bool:
        return name in self.checkpoint.tensor_names()

    def matrix(self, name: str, rows: slice | None = None, columns: slice | None = None) -> torch.Tensor:
        """A part of a matrix (all of it by default), [rows, columns]."""
        shape = self.checkpoint.shape(name)
        count = len(range(*(rows or slice(None)).indices(shape[0])))
        width = len(range(*(columns or slice(None)).indices(shape[1])))
        out = torch.empty((count, width), dtype=self.dtype, device=self.device)
        self.fill(out, name, rows, columns)
        return out

    def fill(self, out: torch.Tensor, name: str, rows: slice | None = None, columns: slice | None = None) -> None:
        """Write a part of a matrix into ``out``, whose shape is that part's."""
        total, width = self.checkpoint.shape(name)
        first, last, _ = (rows or slice(None)).indices(total)
        step = max(1, _SLICE_VALUES // width)

        def copy(start: int) -> None:
            stop = min(start + step, last)
            values = torch.from_numpy(self.checkpoint.read(name, slice(start, stop)))
            out[start - first : stop - first].copy_(values if columns is None else values[:, columns])

        list(self._pool.map(copy, range(first, last, step)))

    def vector(self, name: str, part: slice | None = None) -> torch.Tensor:
        """One dimension: a norm's weight or a bias."""
        values = torch.from_numpy(self.checkpoint.read(name, part))
        return values.to(dtype=self.dtype, device=self.device)

    def packed(self, name: str) -> torch.Tensor:
        """A tensor of a quantized weight as it is stored: int32, float8_e4m3fn or float16, other floats as float32; on
        the CPU."""
        raw = self.checkpoint.stored(name)
        kind = {"I32": torch.int32, "F8_E4M3": torch.float8_e4m3fn, "F16": torch.float16}.get(raw.type)
        if kind is None:
            return torch.from_numpy(self.checkpoint.read(name))
        return torch.from_numpy(raw.data.copy()).view(-1).view(kind).view(raw.shape)
