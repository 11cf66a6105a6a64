from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.kernels.cpu import build
from engine.kernels.cpu.loader import load
from tests.engine.kernels.cpu.linear_cases import LEVELS

SOURCE = '#include "n.h"\nextern "C" int answer(void) { return N; }\n'


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny source tree and an empty cache in place of the real ones."""
    if not build.compilers():
        pytest.skip("no C++ compiler")
    directory = tmp_path / "sources"
    directory.mkdir()
    (directory / "a.cpp").write_text(SOURCE)
    (directory / "n.h").write_text("#define N 41\n")
    monkeypatch.setattr(build, "SOURCE_DIR", directory)
    monkeypatch.setenv("CALLGATE_HOME", str(tmp_path / "cache"))
    return directory


def answer(library: Path) -> int:
    return int(ctypes.CDLL(str(library)).answer())


def test_builds_once_and_again_after_any_change(tree: Path) -> None:
    first = build.build()
    stamp = first.stat().st_mtime_ns
    assert answer(first) == 41
    assert build.build() == first
    assert first.stat().st_mtime_ns == stamp
    (tree / "n.h").write_text("#define N 42\n")
    second = build.build()
    assert second != first
    assert answer(second) == 42
    assert build.build(force=True) == second


def test_the_wait_is_announced_where_there_is_one(tree: Path, caplog: pytest.LogCaptureFixture) -> None:
    build.build()
    assert [r.getMessage() for r in caplog.records if "Building the CPU kernels" in r.getMessage()]
    caplog.clear()
    build.build()
    assert not caplog.records


def test_the_wait_is_seen_without_logging_set_up(tree: Path) -> None:
    code = "import sys; from pathlib import Path; from engine.kernels.cpu import build; "
    code += "build.SOURCE_DIR = Path(sys.argv[1]); build.build()"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tree)], capture_output=True, text=True, check=True, timeout=60
    )
    assert ran.stderr.startswith("Building the CPU kernels")


def test_builders_beside_each_other_agree(tree: Path) -> None:
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(build.build())) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert answer(results[0]) == 41
    assert sorted(p.name for p in results[0].parent.iterdir()) == sorted(["build.lock", results[0].name])


def test_a_library_beside_the_sources_is_preferred(tree: Path) -> None:
    shipped = build.build(target=tree / "_built")
    assert shipped.parent == tree / "_built"
    assert build.find_library() == shipped
    assert build.build() == shipped


def test_a_file_that_does_not_compile_is_reported(tree: Path) -> None:
    (tree / "a.cpp").write_text("this is no C++\n")
    with pytest.raises(build.BuildUnavailable, match="did not compile"):
        build.build()
    assert build.find_library() is None


def test_no_compiler_is_said_with_what_would_help(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compilers", list)
    assert "no C++ compiler" in build.describe()
    with pytest.raises(build.BuildUnavailable, match="pip install ziglang"):
        build.build()


def test_the_next_compiler_is_tried(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    candidates = [build.Compiler("broken", ("false",)), *build.compilers()]
    monkeypatch.setattr(build, "compilers", lambda: candidates)
    assert answer(build.build()) == 41


def test_an_unwritable_cache_is_no_crash(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLGATE_HOME", str(tree / "a.cpp" / "below-a-file"))
    with pytest.raises(build.BuildUnavailable, match="cannot be built"):
        build.build()


def test_description_follows_the_state(tree: Path) -> None:
    assert "not built yet" in build.describe()
    library = build.build()
    assert str(library) in build.describe()


def test_flags_follow_the_file_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.platform, "machine", lambda: "x86_64")
    assert "-mavx512vnni" in build.flags_of(Path("x_avx512.cpp"))
    assert "-mavx512f" not in build.flags_of(Path("x_avx2.cpp"))
    assert not any(f.startswith("-m") for f in build.flags_of(Path("x.cpp")))
    assert not any("native" in f for f in build.flags_of(Path("x_avx512.cpp")))
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    assert not any(f.startswith("-m") for f in build.flags_of(Path("x_avx512.cpp")))


@pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")
@pytest.mark.parametrize("name", [b"__cpu_model", b"__cpu_indicator_init", b"__cpu_features2"])
def test_the_processor_is_asked_without_the_help_of_a_compilers_runtime(name: bytes) -> None:
    """__builtin_cpu_supports and target_clones link these: zig's runtime lacks them, and there nothing could be built."""
    assert name not in Path(load()._name).read_bytes()
