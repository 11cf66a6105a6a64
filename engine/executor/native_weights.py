"""A checkpoint as packed linear layers for the native kernels, and the packed copy on disk that makes starts fast.

Quantized GGUF tensors are packed as they are, losing nothing. Float tensors follow ``quantization``: ``none`` keeps
float32 and bfloat16, ``int8`` and ``auto`` make Q8_0 (groups of 32, one float16 scale), ``int4`` makes Q4_1.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import logging
import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from engine.config import Quantization
from engine.kernels.cpu.model import NativeModelError, address, as_bytes
from engine.weights.checkpoint import Checkpoint
from engine.weights.tensors import RawTensor

logger = logging.getLogger(__name__)

ByteArray = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]

FORMAT_VERSION: Final = 1
_MAGIC: Final = b"CGPACK\x00\x01"
_ALIGN: Final = 4096
_MARGIN: Final = 256 << 20
HUGE_PAGE: Final = 2 << 20
_MADV_POPULATE_READ: Final = 22
"""Linux 5.14; the mmap module has no name for it."""
_FLOATS: Final = ("F32", "F16", "BF16")
_TARGETS: Final = {"int8": "Q8_0", "auto": "Q8_0", "int4": "Q4_1"}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of one weight in a GGUF type the kernels read. data: uint8 [rows, bytes per row], contiguous."""

    type: int
    rows: int
    columns: int
    data: ByteArray


class LinearPacker:
    """Makes packed linears of a checkpoint's tensors. Handles belong to the caller."""

    def __init__(self, lib: ctypes.CDLL, checkpoint: Checkpoint, quantization: Quantization) -> None:
        self._lib = lib
        self._checkpoint = checkpoint
        self._quantization = quantization

    def names(self) -> list[str]:
        """Every linear of the model, in the order in which a step reads them."""
        layers = range(self._checkpoint.config.num_layers)
        return [*(f"{i}.{part}" for i in layers for part in ("qkv", "out", "gate_up", "down")), "head"]

    def create(self, name: str) -> int:
        """Handle of linear ``name``; NativeModelError where its type or shape cannot be packed."""
        if name == "head":
            tied = self._checkpoint.config.tie_word_embeddings
            handle = self._stack("model.embed_tokens" if tied else "lm_head")
        else:
            layer, part = name.split(".")
            prefix = f"model.layers.{layer}."
            if part == "qkv":
                handle = self._stack(*(f"{prefix}self_attn.{p}_proj" for p in "qkv"))
            elif part == "gate_up":
                handle = self._gate_up(prefix)
            else:
                handle = self._stack(prefix + {"out": "self_attn.o_proj", "down": "mlp.down_proj"}[part])
        if not handle:
            raise NativeModelError(f"the native kernels cannot pack the weights of {name}")
        return handle

    def embedding(self) -> Matrix:
        """Embedding rows as they are stored, so that only the rows that are looked up become resident."""
        tensor = self._checkpoint.raw("model.embed_tokens.weight")
        if self._lib.cg_row_bytes(GGMLQuantizationType[tensor.type], tensor.shape[1]):
            return _as_matrix(tensor)
        return self._matrix("model.embed_tokens")

    def _stack(self, *names: str) -> int:
        matrices = [self._matrix(name) for name in names]
        biases = [self._bias(name) for name in names]
        count = len(matrices)
        formats = (ctypes.c_int * count)(*(m.type for m in matrices))
        rows = (ctypes.c_int * count)(*(m.rows for m in matrices))
        data = (ctypes.c_void_p * count)(*(address(m.data) for m in matrices))
        bias = (ctypes.c_void_p * count)(*map(address, biases))
        return int(self._lib.cg_linear_create_stack(count, formats, rows, matrices[0].columns, data, bias) or 0)

    def _gate_up(self, prefix: str) -> int:
        gate, up = self._matrix(f"{prefix}mlp.gate_proj"), self._matrix(f"{prefix}mlp.up_proj")
        handle = self._lib.cg_linear_create_gate_up(
            gate.type, up.type, gate.rows, gate.columns, address(gate.data), address(up.data)
        )
        return int(handle or 0)

    def _bias(self, name: str) -> FloatArray | None:
        full = f"{name}.bias"
        if full not in self._checkpoint.tensor_names():
            return None
        return np.ascontiguousarray(self._checkpoint.read(full), np.float32)

    def _matrix(self, name: str) -> Matrix:
        tensor = self._checkpoint.raw(f"{name}.weight")
        readable = bool(self._lib.cg_row_bytes(GGMLQuantizationType[tensor.type], tensor.shape[1]))
        if tensor.type in _FLOATS:
            target = _TARGETS.get(self._quantization)
            return _as_matrix(tensor) if target is None else self._quantize(tensor, target)
        return _as_matrix(tensor) if readable else self._quantize(tensor, "Q8_0")

    def _quantize(self, tensor: RawTensor, target: str) -> Matrix:
        rows, columns = tensor.shape
        if tensor.type not in _FLOATS:
            tensor = RawTensor("F32", tensor.shape, tensor.to_float32().view(np.uint8).reshape(rows, -1))
        source, kind = _as_matrix(tensor), int(GGMLQuantizationType[target])
        out = np.empty((rows, int(self._lib.cg_row_bytes(kind, columns))), np.uint8)
        code = self._lib.cg_quantize_weights(kind, source.type, address(source.data), rows, columns, address(out))
        if code or out.size == 0:
            raise NativeModelError(f"{columns} columns cannot be quantized in groups of 32")
        return Matrix(kind, rows, columns, out)


def _as_matrix(tensor: RawTensor) -> Matrix:
    data = np.ascontiguousarray(tensor.data)
    return Matrix(int(GGMLQuantizationType[tensor.type]), tensor.shape[0], tensor.shape[1], data)


class PackedLinears:
    """Linears by name, over one mapped file or over memory of their own. ``close`` after the model that uses them.

    mapped_bytes: size of the mapped file, 0 where there is none.
    """

    def __init__(self, lib: ctypes.CDLL, handles: dict[str, int], mapped: ByteArray | None = None) -> None:
        self._lib = lib
        self._handles = handles
        self._mapped = mapped

    @property
    def mapped_bytes(self) -> int:
        return 0 if self._mapped is None else self._mapped.nbytes

    def __getitem__(self, name: str) -> int:
        return self._handles[name]

    def total_bytes(self) -> int:
        """Bytes that one decode step reads."""
        return sum(int(self._lib.cg_linear_bytes(handle)) for handle in self._handles.values())

    def close(self) -> None:
        for handle in self._handles.values():
            self._lib.cg_linear_destroy(handle)
        self._handles = {}
        self._mapped = None


def load_linears(lib: ctypes.CDLL, packer: LinearPacker, cache: Path | None, *, threads: int = 2) -> PackedLinears:
    """All linears of a model: from ``cache`` where it holds them, else packed now and, if ``cache`` is given and can be
    written, written there first and mapped."""
    if cache is not None:
        found = _open_pack(lib, packer, cache)
        if found is not None:
            return found
        try:
            _write_pack(lib, packer, cache, threads)
            found = _open_pack(lib, packer, cache)
        except OSError as error:
            logger.warning("the packed weights are not cached: %s", error)
        if found is not None:
            return found
    return PackedLinears(lib, dict(_created(packer, threads)))


def _created(packer: LinearPacker, threads: int) -> Iterator[tuple[str, int]]:
    """Packs ahead by a few linears only, so that peak memory is the result and a little."""
    names = packer.names()
    with ThreadPoolExecutor(threads) as pool:
        pending = {name: pool.submit(packer.create, name) for name in names[: threads + 1]}
        for index, name in enumerate(names):
            handle = pending.pop(name).result()
            if index + threads + 1 < len(names):
                following = names[index + threads + 1]
                pending[following] = pool.submit(packer.create, following)
            yield name, handle


def _write_pack(lib: ctypes.CDLL, packer: LinearPacker, path: Path, threads: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries: dict[str, tuple[int, int]] = {}
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".pack-", buffering=0, delete=False) as file:
        try:
            out = HugePageWriter(file)
            for name, handle in _created(packer, threads):
                size = ctypes.c_size_t()
                blob = as_bytes(lib.cg_linear_blob(handle, ctypes.byref(size)), size.value)
                _check_space(path.parent, len(blob))
                entries[name] = (out.position, len(blob))
                out.write(blob.data)
                out.write(bytes(-out.position % _ALIGN))
                lib.cg_linear_destroy(handle)
            header = json.dumps(entries).encode()
            out.write(header + len(header).to_bytes(8, "little") + _MAGIC)
            out.flush()
            os.replace(file.name, path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise
    for stale in path.parent.glob(f"{path.name.rsplit('-', 1)[0]}-*.pack"):
        if stale != path:
            stale.unlink(missing_ok=True)


class HugePageWriter:
    """Writes a file in whole, aligned pieces of 2 MB. A file system that keeps large pages then keeps these, and
    ``_map`` gets them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._pending = bytearray()
        self.position = 0

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        self.position += len(view)
        if self._pending:
            view = self._complete(view)
        whole = len(view) - len(view) % HUGE_PAGE
        for start in range(0, whole, HUGE_PAGE):
            _write_all(self._file, view[start : start + HUGE_PAGE])
        self._pending += view[whole:]

    def _complete(self, view: memoryview) -> memoryview:
        """Fill up the piece that was begun; the rest of ``view``."""
        missing = HUGE_PAGE - len(self._pending)
        self._pending += view[:missing]
        if len(self._pending) == HUGE_PAGE:
            self.flush()
        return view[missing:]

    def flush(self) -> None:
        _write_all(self._file, memoryview(self._pending))
        self._pending = bytearray()


def _write_all(file: IO[bytes], view: memoryview) -> None:
    while view:
        view = view[file.write(view) :]


def _check_space(directory: Path, size: int) -> None:
    if shutil.disk_usage(directory).free < size + _MARGIN:
        raise OSError(f"{directory} has no room for them")


def _open_pack(lib: ctypes.CDLL, packer: LinearPacker, path: Path) -> PackedLinears | None:
    """The linears of a complete pack, None for anything missing, cut short or malformed."""
    try:
        mapping = _map(path)
    except (OSError, ValueError):
        return None
    data = np.frombuffer(mapping, np.uint8)
    entries = _read_entries(mapping)
    handles: dict[str, int] = {}
    for name in packer.names():
        offset, size = entries.get(name, (0, 0))
        valid = size > 0 and 0 <= offset <= len(data) - size and offset % _ALIGN == 0
        handle = lib.cg_linear_from_blob(data.ctypes.data + offset, size) if valid else None
        if not handle:
            logger.warning("%s is damaged and is made anew", path)
            PackedLinears(lib, handles).close()
            return None
        handles[name] = handle
    return PackedLinears(lib, handles, data)


def _map(path: Path) -> mmap.mmap:
    """The file as the page cache holds it: a later start copies nothing, and servers of one model share it.

    It is mapped whole and at once, in 2 MB pages where the file system has them: pages of 4 kB cost a decode step up
    to 7 %, and a page that is first touched by a kernel costs the first token.
    """
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    for advice in (getattr(mmap, "MADV_HUGEPAGE", None), _MADV_POPULATE_READ):
        with contextlib.suppress(OSError):  # a kernel or a file system without it
            if advice is not None:
                mapping.madvise(advice)
    return mapping


def _read_entries(mapping: mmap.mmap) -> dict[str, tuple[int, int]]:
    tail = 8 + len(_MAGIC)
    size = len(mapping)
    if size < tail or mapping[size - len(_MAGIC) :] != _MAGIC:
        return {}
    length = int.from_bytes(mapping[size - tail : size - len(_MAGIC)], "little")
    if length > size - tail:
        return {}
    try:
        entries: Any = json.loads(mapping[size - tail - length : size - tail])
        return {str(name): (int(offset), int(count)) for name, (offset, count) in entries.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def pack_path(model: Path, quantization: Quantization, fallback: Callable[[], Path]) -> Path:
    """Where the packed copy of ``model`` belongs: beside it, or under ``fallback()`` where that cannot be written.

    The name holds a digest of the files' identity (name, size, time), the quantization and the packed format.
    """
    directory = model if model.is_dir() else model.parent
    digest = hashlib.sha256(f"{FORMAT_VERSION} {quantization} {_packer_source()}\n".encode())
    files = sorted(model.glob("*.safetensors")) or sorted(model.glob("*.gguf")) if model.is_dir() else [model]
    for file in files:
        stat = file.stat()
        digest.update(f"{file.resolve()} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    home = directory / ".callgate"
    if not os.access(directory, os.W_OK):
        home = fallback() / "packed"
    return home / f"{model.stem or 'model'}-{quantization}-{digest.hexdigest()[:16]}.pack"


def _packer_source() -> str:
    """Digest of the sources that define the packed form: a change there makes old packs stale."""
    import engine.kernels.cpu as package

    digest = hashlib.sha256()
    for name in ("packed.h", "quant.cpp", "linear.cpp"):
        file = Path(package.__file__).parent / name
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()
