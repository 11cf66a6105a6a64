"""Packed linear layers over numpy arrays: the Python door to callgate_cpu.h. Imports no torch."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Sequence
from ctypes import CDLL, byref, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engine.kernels.cpu.loader import RowsStruct, address, as_bytes, load

FloatArray = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]

GROUP: Final = 32
_ALIGN: Final = 64
_GROUP_BYTES: Final = 64  # of cg_q8_group
_HUGE_PAGE: Final = 2 << 20
_ADD: Final = 1
_NO_BIAS: Final = 2


class Format(IntEnum):
    """Weight types, numbered as in GGUF."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30


class RowsKind(IntEnum):
    """How activations are stored: as they are, rounded to bfloat16, or int8 with a scale per 32 values."""

    F32 = 0
    BF16 = 1
    Q8 = 2


class Isa(IntEnum):
    """Instruction-set levels. Results may differ between levels in the last bits, never within one."""

    AUTO = -1
    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2


class KernelError(RuntimeError):
    """The kernels refused a layer or an argument."""


def aligned_bytes(size: int) -> Bytes:
    """Zeroed memory that starts at a multiple of 64 bytes."""
    memory = np.zeros(size + _ALIGN, np.uint8)
    start = -memory.ctypes.data % _ALIGN
    return memory[start : start + size]


def huge_bytes(size: int) -> Bytes:
    """Memory of its own in 2 MB pages where the system has them, aligned to one; given back with its last view.

    Weights stream through once per step. In 4 kB pages, a file mapping's too, the prefetchers stop at every page and
    reading loses up to a third of the bandwidth.
    """
    memory = mmap.mmap(-1, size + _HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # shared: no huge pages
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(memory, np.uint8)
    start = -data.ctypes.data % _HUGE_PAGE
    return data[start : start + size]


def best_isa() -> Isa:
    """The best level that this machine has and the library holds."""
    return Isa(int(load().cg_isa_best()))


class Context:
    """Threads, instruction-set level and scratch memory. Not for concurrent use; ``handle`` is the cg_ctx."""

    def __init__(self, threads: int = 0, isa: Isa = Isa.AUTO, lib: CDLL | None = None) -> None:
        """threads 0: one per core that this process may use. lib: the library, where the caller has loaded it. Raises
        KernelError where the level is missing here."""
        self._lib = lib or load()
        handle = self._lib.cg_ctx_create(threads, int(isa))
        if not handle:
            raise KernelError(f"no kernel context with {threads} threads at level {isa.name}")
        self.handle: int = handle

    @property
    def threads(self) -> int:
        return int(self._lib.cg_ctx_threads(self.handle))

    @property
    def isa(self) -> Isa:
        return Isa(int(self._lib.cg_ctx_isa(self.handle)))

    def close(self) -> None:
        """Stop the threads. Call once, when nothing uses the context any more."""
        if self.handle:
            self._lib.cg_ctx_destroy(self.handle)
            self.handle = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """m activation rows of k values in the form a layer reads (cg_rows)."""

    kind: RowsKind
    m: int
    k: int
    memory: Bytes

    @classmethod
    def empty(cls, kind: RowsKind, m: int, k: int) -> Rows:
        """Memory for m rows; k must be a multiple of 32."""
        size = int(load().cg_rows_bytes(int(kind), m, k))
        if not size and m:
            raise KernelError(f"rows of {k} values are not a multiple of {GROUP}")
        return cls(kind, m, k, aligned_bytes(size))

    @classmethod
    def of(cls, context: Context, kind: RowsKind, x: FloatArray) -> Rows:
        """Rows from float32 [m, k]."""
        if x.ndim != 2 or x.dtype != np.float32:
            raise ValueError(f"activations are {x.dtype} {x.shape}, expected float32 [m, k]")
        rows = cls.empty(kind, *x.shape)
        load().cg_rows_quantize(context.handle, byref(rows.struct()), address(x), x.shape[1], x.shape[0])
        return rows

    def struct(self) -> RowsStruct:
        return RowsStruct(int(self.kind), self.k, self.memory.ctypes.data)

    def values(self) -> FloatArray:
        """What the stored rows stand for, float32 [m, k]."""
        size = self.m * self.k
        if self.kind == RowsKind.F32:
            return self.memory[: 4 * size].view(np.float32).reshape(self.m, self.k)
        if self.kind == RowsKind.BF16:
            bits = self.memory[: 2 * size].view(np.uint16).astype(np.uint32) << 16
            return bits.view(np.float32).reshape(self.m, self.k)
        groups = self.memory[: size // GROUP * _GROUP_BYTES].reshape(self.m, self.k // GROUP, _GROUP_BYTES)
        q = groups[..., :32].view(np.int8).astype(np.float32)
        scale = np.ascontiguousarray(groups[..., 32:36]).view(np.float32)
        return (q * scale).reshape(self.m, self.k)


@dataclass(frozen=True, slots=True)
class Weight:
    """One matrix [n, k] as its file holds it: raw rows, their type, and a bias [n] or None."""

    fmt: Format
    n: int
    k: int
    raw: AnyArray
    bias: FloatArray | None = None

    def check(self) -> None:
        """Raises ValueError where the sizes do not fit: the kernels would read past the end."""
        need = self.n * row_bytes(self.fmt, self.k)
        if not need or self.raw.nbytes != need:
            raise ValueError(f"{self.fmt.name} [{self.n}, {self.k}] takes {need} bytes, got {self.raw.nbytes}")
        if self.bias is not None and (self.bias.dtype != np.float32 or self.bias.shape != (self.n,)):
            raise ValueError(f"the bias is {self.bias.dtype} {self.bias.shape}, expected float32 ({self.n},)")


class Linear:
    """A packed layer: one matrix, several stacked along n, or gate and up of one MLP. ``handle`` is the cg_linear."""

    def __init__(self, handle: int | None, keep: object = None) -> None:
        if not handle:
            raise KernelError("the layer cannot be packed: unknown type, or k is no multiple of its block")
        self._lib = load()
        self._keep = keep
        self.handle: int = handle
        self.n = int(self._lib.cg_linear_n(handle))
        self.k = int(self._lib.cg_linear_k(handle))
        self.rows_kind = RowsKind(int(self._lib.cg_linear_rows_kind(handle)))
        self.is_gate_up = bool(self._lib.cg_linear_is_gate_up(handle))
        self.nbytes = int(self._lib.cg_linear_bytes(handle))

    @classmethod
    def stack(cls, weights: Sequence[Weight]) -> Linear:
        """Matrices with the same k, outputs one after the other (one weight: a plain layer)."""
        for w in weights:
            w.check()
        if len({w.k for w in weights}) != 1:
            raise ValueError("stacked matrices need the same k")
        count = len(weights)
        fmts = (c_int * count)(*(int(w.fmt) for w in weights))
        ns = (c_int * count)(*(w.n for w in weights))
        raws = (c_void_p * count)(*(address(w.raw) for w in weights))
        biases = (c_void_p * count)(*(address(w.bias) for w in weights))
        return cls(load().cg_linear_create_stack(count, fmts, ns, weights[0].k, raws, biases))

    @classmethod
    def screen(cls, head: Weight) -> Linear:
        """A head of Q8_0 in five bits. Its bias bounds the error: |head - screen| <= bias * |x|, output by output."""
        head.check()
        return cls(load().cg_linear_create_screen(int(head.fmt), head.n, head.k, address(head.raw)))

    @classmethod
    def gate_up(cls, gate: Weight, up: Weight) -> Linear:
        """The two matrices whose outputs become silu(gate) * up. n must be a multiple of 32."""
        gate.check()
        up.check()
        if (gate.n, gate.k) != (up.n, up.k):
            raise ValueError(f"gate is [{gate.n}, {gate.k}], up is [{up.n}, {up.k}]")
        fmts = int(gate.fmt), int(up.fmt)
        return cls(load().cg_linear_create_gate_up(*fmts, gate.n, gate.k, address(gate.raw), address(up.raw)))

    @classmethod
    def from_blob(cls, blob: AnyArray) -> Linear:
        """A layer over packed bytes (a mapped file, say); they are not copied and must stay as they are."""
        handle = load().cg_linear_from_blob(address(blob), blob.nbytes)
        if not handle:
            raise KernelError("these bytes are no packed layer, or do not start at a multiple of 64")
        return cls(handle, keep=blob)

    def blob(self) -> Bytes:
        """The packed bytes, a view that lives as long as the layer."""
        size = c_size_t()
        start = self._lib.cg_linear_blob(self.handle, byref(size))
        return as_bytes(start, size.value)

    def close(self) -> None:
        """Free the packed bytes (those of from_blob stay with their owner)."""
        if self.handle:
            self._lib.cg_linear_destroy(self.handle)
            self.handle = 0
            self._keep = None

    def forward(
        self,
        context: Context,
        x: Rows,
        m: int | None = None,
        add_to: FloatArray | None = None,
        *,
        bias: bool = True,
    ) -> FloatArray:
        """float32 [m, n] of the first m rows; with add_to, that array plus the product, in place."""
        m = self._check_rows(x, m)
        if self.is_gate_up:
            raise ValueError("a gate_up layer has forward_gate_up")
        y = np.empty((m, self.n), np.float32) if add_to is None else add_to
        if y.shape != (m, self.n) or y.dtype != np.float32:
            raise ValueError(f"the output is {y.dtype} {y.shape}, expected float32 ({m}, {self.n})")
        flags = (0 if add_to is None else _ADD) | (0 if bias else _NO_BIAS)
        self._lib.cg_linear_forward(context.handle, self.handle, byref(x.struct()), address(y), self.n, m, flags)
        return y

    def forward_gate_up(self, context: Context, x: Rows, kind: RowsKind) -> Rows:
        """silu(gate) * up as rows of the kind that the down projection reads."""
        if not self.is_gate_up:
            raise ValueError("not a gate_up layer")
        m = self._check_rows(x, None)
        out = Rows.empty(kind, m, self.n)
        self._lib.cg_gate_up_forward(context.handle, self.handle, byref(x.struct()), byref(out.struct()), m)
        return out

    def row(self, index: int) -> FloatArray:
        """One output's weights, float32 [k]. gate_up: gate's rows, then up's."""
        out = np.empty(self.k, np.float32)
        if self._lib.cg_linear_row(self.handle, index, address(out)):
            raise IndexError(f"the layer has no output {index}")
        return out

    def _check_rows(self, x: Rows, m: int | None) -> int:
        m = x.m if m is None else m
        if x.kind != self.rows_kind or x.k != self.k or not 0 <= m <= x.m:
            raise ValueError(
                f"rows are {x.kind.name} [{x.m}, {x.k}], the layer reads {self.rows_kind.name} [_, {self.k}]"
            )
        return m


def row_bytes(fmt: Format, k: int) -> int:
    """Bytes of one row of k values, 0 where k is no multiple of the type's block."""
    return int(load().cg_row_bytes(int(fmt), k))


def quantize_weights(fmt: Format, weights: AnyArray, source: Format) -> Bytes:
    """Float rows [n, k] (their bits of type ``source``) as raw rows of Q8_0, Q4_0 or Q4_1: round to nearest."""
    n, k = weights.shape
    Weight(source, n, k, weights).check()
    out = np.zeros((n, row_bytes(fmt, k)), np.uint8)
    if load().cg_quantize_weights(int(fmt), int(source), address(weights), n, k, address(out)):
        raise KernelError(f"{source.name} [{n}, {k}] cannot be quantized to {fmt.name}")
    return out


def embed_rows(fmt: Format, raw: AnyArray, n: int, k: int, ids: npt.NDArray[np.int32]) -> FloatArray:
    """Rows ``ids`` of a raw [n, k] table as float32. Raises IndexError for an id outside 0..n-1."""
    Weight(fmt, n, k, raw).check()
    ids = np.ascontiguousarray(ids, np.int32)
    out = np.empty((len(ids), k), np.float32)
    if load().cg_embed_rows(int(fmt), address(raw), n, k, address(ids), len(ids), address(out), k):
        raise IndexError("a token id is outside the embedding table")
    return out
