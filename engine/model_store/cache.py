"""The cache directory: where models lie, which are complete, and who may write.

A file under its final name is complete: it got that name by rename, after its hash was checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from engine.model_store.catalog import CATALOG, CatalogEntry
from engine.model_store.errors import ModelStoreError, SpaceError

SPACE_MARGIN = 16 * 1024 * 1024


def cache_home() -> Path:
    """CALLGATE_HOME, else the platform's user cache directory."""
    override = os.environ.get("CALLGATE_HOME")
    return Path(override).expanduser() if override else platformdirs.user_cache_path("callgate")


def models_dir() -> Path:
    return cache_home() / "models"


def cached_path(entry: CatalogEntry) -> Path | None:
    """The complete file of an alias, None where it has not been pulled (or was cut short by someone since)."""
    path = models_dir() / entry.filename
    try:
        return path if path.stat().st_size == entry.size else None
    except OSError:
        return None


def partial_path(entry: CatalogEntry) -> Path:
    return models_dir() / f"{entry.filename}.partial"


def list_cached() -> list[tuple[CatalogEntry, Path | None]]:
    return [(entry, cached_path(entry)) for entry in CATALOG]


def make_models_dir() -> Path:
    directory = models_dir()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ModelStoreError(f"cannot create the model cache {directory}: {error.strerror}") from error
    return directory


def check_space(directory: Path, needed: int) -> None:
    """Raise SpaceError unless ``needed`` bytes and a margin are free."""
    free = shutil.disk_usage(directory).free
    if free < needed + SPACE_MARGIN:
        raise no_space(directory, needed, free)


def no_space(directory: Path, needed: int, free: int | None = None) -> SpaceError:
    free = shutil.disk_usage(directory).free if free is None else free
    return SpaceError(
        f"no space: {needed / 1e6:.0f} MB are needed in {directory}, {free / 1e6:.0f} MB are free "
        "(set CALLGATE_HOME to use another disk)"
    )


def is_no_space(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def pull_lock(entry: CatalogEntry, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the one right to write this model. ``on_wait`` is called once if another process holds it.

    The kernel frees the lock when its holder ends in any way; a stale lock file means nothing.
    """
    path = make_models_dir() / f"{entry.filename}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waited = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waited:
                    on_wait()
                waited = True
                time.sleep(0.2)
        yield
    finally:
        os.close(descriptor)
