"""The packed copy of a model's weights on disk, which makes starts fast, and the linears that are made of it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from engine.config import Quantization
from engine.executor.native_weights import LinearPacker
from engine.kernels.cpu.loader import as_bytes

logger = logging.getLogger(__name__)

ByteArray = npt.NDArray[np.uint8]

FORMAT_VERSION: Final = 1
HUGE_PAGE: Final = 2 << 20
_MAGIC: Final = b"CGPACK\x00\x01"
_ALIGN: Final = 4096
_MARGIN: Final = 256 << 20
_TEMPORARY: Final = ".pack-"
_FALLBACK: Final = "packed"
_MADV_POPULATE_READ: Final = 22
"""Linux 5.14; the mmap module has no name for it."""
_POPULATED_AT_ONCE: Final = 64 << 20


class PackedLinears:
    """Linears by name, over one mapped file or over memory of their own. ``close`` after the model that uses them.

    mapped_bytes: size of the mapped file, 0 where there is none.
    """

    def __init__(
        self, lib: ctypes.CDLL, handles: dict[str, int], data: ByteArray | None = None, mapped: int = 0
    ) -> None:
        self._lib = lib
        self._handles = handles
        self._data = data
        self.mapped_bytes = mapped

    def __getitem__(self, name: str) -> int:
        return self._handles[name]

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def total_bytes(self) -> int:
        """Bytes that one decode step reads: the head, not its screen."""
        return sum(int(self._lib.cg_linear_bytes(handle)) for name, handle in self._handles.items() if name != "screen")

    def close(self) -> None:
        for handle in self._handles.values():
            self._lib.cg_linear_destroy(handle)
        self._handles = {}
        self._data = None
        self.mapped_bytes = 0


def load_linears(lib: ctypes.CDLL, packer: LinearPacker, cache: Path | None, *, threads: int = 2) -> PackedLinears:
    """All linears of a model: from ``cache`` where it holds them, else packed now and, if ``cache`` is given and can be
    written, written there first and mapped."""
    if cache is not None:
        try:
            found = _open_pack(lib, packer, cache)
            if found is None:
                _write_pack(lib, packer, cache, threads)
                found = _open_pack(lib, packer, cache)
        except OSError as error:
            logger.warning("the packed weights are not cached: %s", error)
        else:
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
    """Write the pack beside its name and give it that name when all of it is on the disk. Who may read the model may
    read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    temporary = path.parent / f"{_TEMPORARY}{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, packer.permissions() | 0o600)
    with open(descriptor, "wb", buffering=0) as file:
        try:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _write_linears(lib, _created(packer, threads), file, path.parent)
            os.fsync(file)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    _remove_stale(path)


def _write_linears(lib: ctypes.CDLL, created: Iterator[tuple[str, int]], file: IO[bytes], directory: Path) -> None:
    entries: dict[str, tuple[int, int]] = {}
    out = HugePageWriter(file)
    for name, handle in created:
        size = ctypes.c_size_t()
        blob = as_bytes(lib.cg_linear_blob(handle, ctypes.byref(size)), size.value)
        _check_space(directory, len(blob))
        entries[name] = (out.position, len(blob))
        out.write(blob.data)
        out.write(bytes(-out.position % _ALIGN))
        lib.cg_linear_destroy(handle)
    header = json.dumps(entries).encode()
    out.write(header + len(header).to_bytes(8, "little") + _MAGIC)
    out.flush()


def _remove_abandoned(directory: Path) -> None:
    """Temporary files whose writer was killed: nobody holds their lock."""
    for file in directory.iterdir():
        if file.name.startswith(_TEMPORARY):
            with contextlib.suppress(OSError), file.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()


def _remove_stale(path: Path) -> None:
    """Earlier packs of this model and quantization: names that differ in the digest only. Under the cache directory
    also those of its name that lie beside its directory, where packs were once."""
    name = re.compile(re.escape(path.name.rsplit("-", 1)[0]) + r"-[0-9a-f]{16}\.pack")
    flat = path.parent.parent
    for directory in (path.parent, flat) if flat.name == _FALLBACK else (path.parent,):
        for file in directory.iterdir():
            if file != path and name.fullmatch(file.name):
                with contextlib.suppress(OSError):
                    file.unlink()


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
    """The linears of a complete pack, None for anything missing, cut short or malformed. Raises OSError where a pack
    is there and cannot be read into memory: another one could not either."""
    try:
        file = path.open("rb")
    except OSError:
        return None
    with file:
        if os.fstat(file.fileno()).st_size == 0:
            return None
        mapping, is_file = _map(file)
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
    return PackedLinears(lib, handles, data, data.nbytes if is_file else 0)


def _map(file: IO[bytes]) -> tuple[mmap.mmap, bool]:
    """The file as the page cache holds it: a later start copies nothing, and servers of one model share it. False: a
    copy of its own, on a file system that maps no files.

    It is mapped whole and at once, in 2 MB pages where the file system has them: pages of 4 kB cost a decode step up
    to 7 %, and a page that is first touched by a kernel costs the first token.
    """
    try:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError:
        return _read(file), False
    with contextlib.suppress(OSError, AttributeError):  # a system or a file system without it
        mapping.madvise(mmap.MADV_HUGEPAGE)
    _populate(mapping)
    return mapping, True


def _populate(mapping: mmap.mmap) -> None:
    """Read it in, by libc's madvise and in pieces: that of the mmap module stops every thread of the process, for as
    long as the disk takes."""
    libc = ctypes.CDLL(None)
    start = np.frombuffer(mapping, np.uint8).ctypes.data
    for offset in range(0, len(mapping), _POPULATED_AT_ONCE):
        size = min(_POPULATED_AT_ONCE, len(mapping) - offset)
        if libc.madvise(ctypes.c_void_p(start + offset), ctypes.c_size_t(size), _MADV_POPULATE_READ):
            return


def _read(file: IO[bytes]) -> mmap.mmap:
    size = os.fstat(file.fileno()).st_size
    copy = mmap.mmap(-1, size)
    view = memoryview(copy)
    filled = 0
    while filled < size and (count := os.readv(file.fileno(), [view[filled : filled + HUGE_PAGE]])):
        filled += count
    return copy


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
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
        return {}


def pack_path(model: Path, quantization: Quantization, fallback: Callable[[], Path]) -> Path:
    """Where the packed copy of ``model`` lies or belongs: beside it, or, where nothing can be written there, in a
    directory of this model's under ``fallback()``.

    The name holds a digest of the files' identity (name, size, time), the quantization and the packed format.
    """
    directory = model if model.is_dir() else model.parent
    digest = hashlib.sha256(f"{FORMAT_VERSION} {quantization} {_packer_source()}\n".encode())
    files = sorted(model.glob("*.safetensors")) or sorted(model.glob("*.gguf")) if model.is_dir() else [model]
    for file in files:
        stat = file.stat()
        digest.update(os.fsencode(file.resolve()) + f" {stat.st_size} {stat.st_mtime_ns}\n".encode())
    name = f"{model.stem or 'model'}-{quantization}-{digest.hexdigest()[:16]}.pack"
    beside = directory / ".callgate"
    if os.access(beside / name, os.R_OK) or _is_writable(beside):
        return beside / name
    return fallback() / _FALLBACK / hashlib.sha256(os.fsencode(model.resolve())).hexdigest()[:16] / name


def _is_writable(directory: Path) -> bool:
    """A directory that is there, or one that can be made."""
    return os.access(directory if directory.exists() else directory.parent, os.W_OK | os.X_OK)


def _packer_source() -> str:
    """Digest of the sources that define the packed form: a change there makes old packs stale."""
    import engine.kernels.cpu as package

    digest = hashlib.sha256()
    for name in ("packed.h", "quant.cpp", "linear.cpp"):
        file = Path(package.__file__).parent / name
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()
