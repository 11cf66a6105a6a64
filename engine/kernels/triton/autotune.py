"""Which block sizes a kernel uses for which shapes: measured once per GPU, kept on disk, bounded."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import platformdirs
import torch
import triton

from engine.kernels.triton.common import INTERPRETED

logger = logging.getLogger(__name__)

Config = Mapping[str, int]
Measure = Callable[[Callable[[], None]], float]

MAX_ENTRIES: Final = 512
_MAX_FILE_BYTES: Final = 1 << 20


class TuneTable:
    """(kernel, shape) -> index of a candidate. Least recently used entries go first beyond ``limit``.

    ``path``: a JSON file, read at once and written after each measurement; None keeps all in memory. ``measure``:
    milliseconds of a call, None where nothing can be measured: the first candidate is used then, and not kept.
    """

    def __init__(self, path: Path | None, measure: Measure | None, *, limit: int = MAX_ENTRIES) -> None:
        self._path = path
        self._measure = measure
        self._limit = limit
        self._entries: OrderedDict[str, int] = OrderedDict()
        self._read()

    def __len__(self) -> int:
        return len(self._entries)

    def pick(
        self, kernel: str, shape: Sequence[int], candidates: Sequence[Config], run: Callable[[Config], None]
    ) -> Config:
        """The best of ``candidates`` for this shape. ``run`` computes with one; it may be called many times."""
        if len(candidates) == 1 or self._measure is None:
            return candidates[0]
        key = f"{kernel}:{','.join(map(str, shape))}:{_fingerprint(candidates)}"
        index = self._entries.get(key, -1)
        if not 0 <= index < len(candidates):
            index = self._best(kernel, candidates, run)
            self._entries[key] = index
            while len(self._entries) > self._limit:
                self._entries.popitem(last=False)
            self._write()
        self._entries.move_to_end(key)
        return candidates[index]

    def _best(self, kernel: str, candidates: Sequence[Config], run: Callable[[Config], None]) -> int:
        """A candidate that needs more registers or shared memory than there is counts as infinitely slow."""
        if self._measure is None:
            return 0
        times: list[float] = []
        for config in candidates:
            try:
                times.append(self._measure(functools.partial(run, config)))
            except triton.runtime.errors.OutOfResources as error:
                logger.debug("%s cannot use %s: %s", kernel, dict(config), error)
                times.append(float("inf"))
        return times.index(min(times))

    def _read(self) -> None:
        """A damaged or foreign file is no error: it is measured anew."""
        if self._path is None:
            return
        try:
            if self._path.stat().st_size > _MAX_FILE_BYTES:
                return
            entries = json.loads(self._path.read_text("utf-8"))
            items = list(entries.items())[-self._limit :]
        except (OSError, ValueError, RecursionError, AttributeError):
            return
        self._entries.update((key, index) for key, index in items if isinstance(key, str) and type(index) is int)

    def _write(self) -> None:
        """In one piece, so that a reader never sees half a file; a full disk only costs a measurement next time."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = self._path.with_suffix(f".{os.getpid()}.tmp")
            new.write_text(json.dumps(self._entries), "utf-8")
            new.replace(self._path)
        except OSError as error:
            logger.warning("cannot keep measured kernel settings in %s: %s", self._path, error.strerror)


def _fingerprint(candidates: Sequence[Config]) -> str:
    """Changes with the candidates, so that an index never means another configuration."""
    return "/".join("x".join(str(value) for value in config.values()) for config in candidates)


@functools.cache
def tune_table() -> TuneTable:
    """This process's table: one file per GPU model and Triton version in CALLGATE_HOME or the user's cache directory.
    With CALLGATE_AUTOTUNE=0 nothing is measured: every kernel then uses its first candidate, and compiles only that."""
    if INTERPRETED or os.environ.get("CALLGATE_AUTOTUNE") == "0" or not torch.cuda.is_available():
        return TuneTable(None, None)
    override = os.environ.get("CALLGATE_HOME")
    base = Path(override).expanduser() if override else platformdirs.user_cache_path("callgate")
    name = "".join(c if c.isalnum() else "-" for c in torch.cuda.get_device_name())
    path = base / "triton" / f"{name}-{triton.__version__}.json"
    return TuneTable(path, lambda run: float(triton.testing.do_bench(run, warmup=5, rep=20)))
