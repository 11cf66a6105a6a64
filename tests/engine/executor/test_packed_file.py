"""The packed copy on disks and in directories as they may be."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from types import SimpleNamespace

import pytest

from engine.executor import native_weights, packed_file
from engine.executor.native_weights import LinearPacker
from engine.executor.packed_file import load_linears, pack_path
from engine.kv_cache.manager import KVCacheManager
from engine.sampling_params import SamplingParams
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.native_driver import load_native
from tests.engine.executor.test_native_executor import make_req, run
from tests.engine.models.tiny import make_model, random_tokens, save


@pytest.fixture
def model(tmp_path):
    return save(make_model("qwen3"), tmp_path / "model")


@pytest.fixture(scope="module")
def packer(tmp_path_factory):
    path = save(make_model("qwen3"), tmp_path_factory.mktemp("model"))
    executor = load_native(path, quantization="int8")
    yield executor._lib, LinearPacker(executor._lib, open_checkpoint(path), "int8")
    executor.close()


def logprobs(executor):
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    return run(executor, make_req(kv, random_tokens(30), params=SamplingParams(temperature=0, logprobs=True)), 30)


def no_packing(monkeypatch):
    monkeypatch.setattr(native_weights.LinearPacker, "create", lambda *_: pytest.fail("packed again"))


def refuse_maps(monkeypatch, *, of_memory=False):
    """mmap as on a file system that maps no files, or where the address space is used up too."""

    def refused(descriptor, *args, **more):
        if descriptor == -1 and not of_memory:
            return mmap.mmap(descriptor, *args, **more)
        raise OSError(errno.ENODEV if descriptor != -1 else errno.ENOMEM, "no map")

    fake = SimpleNamespace(mmap=refused, ACCESS_READ=mmap.ACCESS_READ, MADV_HUGEPAGE=mmap.MADV_HUGEPAGE)
    monkeypatch.setattr(packed_file, "mmap", fake)


def test_where_files_cannot_be_mapped_the_copy_is_read(model, monkeypatch):
    refuse_maps(monkeypatch)
    outputs = []
    for cache in (False, True, True):
        executor = load_native(model, cache=cache, quantization="int8")
        outputs.append(logprobs(executor))
        assert executor._linears.mapped_bytes == 0, "it is memory of this process"
        executor.close()
        if cache:
            no_packing(monkeypatch)
    assert outputs[0] == outputs[1] == outputs[2]


def test_a_copy_that_cannot_be_used_is_not_written_at_every_start(model, monkeypatch, caplog):
    refuse_maps(monkeypatch, of_memory=True)
    written = []
    for _ in range(3):
        executor = load_native(model, cache=True, quantization="int8")
        assert logprobs(executor).token_ids
        executor.close()
        (pack,) = (model / ".callgate").glob("*")
        written.append(pack.stat().st_mtime_ns)
    assert len(set(written)) == 1
    assert "not cached" in caplog.text


def test_what_killed_writers_left_goes_and_what_others_write_stays(model):
    directory = model / ".callgate"
    directory.mkdir()
    for name in (".pack-killed", ".pack-also", ".pack-written"):
        (directory / name).write_bytes(b"x" * 100)
    with (directory / ".pack-written").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        load_native(model, cache=True, quantization="int8").close()
    left = sorted(file.name for file in directory.iterdir())
    assert left[0] == ".pack-written"
    assert len(left) == 2


@pytest.mark.parametrize("step", ["flock", "fsync", "replace"])
def test_a_full_disk_or_no_locks_leave_nothing_and_stop_no_start(model, monkeypatch, step):
    def fails(*_):
        raise OSError(errno.ENOSPC if step != "flock" else errno.ENOLCK, step)

    monkeypatch.setattr(packed_file.fcntl if step == "flock" else packed_file.os, step, fails)
    executor = load_native(model, cache=True, quantization="int8")
    monkeypatch.undo()
    assert logprobs(executor).token_ids
    executor.close()
    names = [file.name for file in (model / ".callgate").iterdir()]
    assert [name.endswith(".pack") for name in names] == ([True] if step == "flock" else [])


OTHERS = ("a-int8-b", "a-int8-b-int8", "ab", "b", "[a]", "?", "a-int4", "a-int8-0123456789abcdef")


@pytest.mark.parametrize("name", ["a", "a-int8-b", "?", "[a]", "*"])
def test_only_earlier_packs_of_this_very_model_are_removed(packer, tmp_path, name):
    lib, linears = packer
    others = {other: tmp_path / f"{other}-int8-{'0' * 16}.pack" for other in OTHERS if other != name}
    for file in (*others.values(), tmp_path / "notes", tmp_path / f"{name}-int8-mine.pack"):
        file.write_bytes(b"x")
    for digest in ("1" * 16, "2" * 16):
        load_linears(lib, linears, tmp_path / f"{name}-int8-{digest}.pack").close()
    assert (tmp_path / f"{name}-int8-{'2' * 16}.pack").exists()
    assert not (tmp_path / f"{name}-int8-{'1' * 16}.pack").exists()
    assert all(file.exists() for file in others.values())
    assert len(list(tmp_path.iterdir())) == len(others) + 3


def test_packs_from_when_they_lay_flat_in_the_cache_directory_go_too(packer, tmp_path):
    lib, linears = packer
    home = tmp_path / "packed"
    home.mkdir()
    old, other = home / f"a-int8-{'1' * 16}.pack", home / f"b-int8-{'1' * 16}.pack"
    elsewhere = tmp_path / f"a-int8-{'3' * 16}.pack"
    for file in (old, other, elsewhere):
        file.write_bytes(b"x")
    load_linears(lib, linears, home / "0123456789abcdef" / f"a-int8-{'2' * 16}.pack").close()
    assert not old.exists()
    assert other.exists()
    assert elsewhere.exists()


def deny_writing(monkeypatch, *directories):
    """The superuser, who runs tests, may write anywhere."""
    access = os.access

    def checked(path, mode):
        return not (mode & os.W_OK and path in directories) and access(path, mode)

    monkeypatch.setattr(packed_file.os, "access", checked)


def test_models_of_one_name_in_directories_without_write_permission_have_packs_of_their_own(tmp_path, monkeypatch):
    models = [save(make_model("qwen3"), tmp_path / place / "model") for place in ("one", "two")]
    deny_writing(monkeypatch, *models)
    packs = [pack_path(model, "int8", lambda: tmp_path / "home") for model in models]
    assert len({pack.parent for pack in packs}) == 2
    assert all(pack.is_relative_to(tmp_path / "home") for pack in packs)
    for _ in range(2):
        for model, pack in zip(models, packs, strict=True):
            executor = load_native(model, quantization="int8")
            load_linears(executor._lib, LinearPacker(executor._lib, open_checkpoint(model), "int8"), pack).close()
            executor.close()
        assert all(pack.exists() for pack in packs)


def test_a_directory_that_somebody_else_made_is_used_for_reading_only(model, tmp_path, monkeypatch):
    beside = model / ".callgate"
    beside.mkdir()
    deny_writing(monkeypatch, beside)
    elsewhere = pack_path(model, "int8", lambda: tmp_path / "home")
    assert elsewhere.is_relative_to(tmp_path / "home")
    (beside / elsewhere.name).write_bytes(b"made by its owner")
    assert pack_path(model, "int8", lambda: pytest.fail("not needed")) == beside / elsewhere.name


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o640, 0o444])
def test_who_may_read_the_model_may_read_its_packed_copy(model, mode):
    (model / "model.safetensors").chmod(mode)
    before = os.umask(0o022)
    try:
        load_native(model, cache=True, quantization="int8").close()
    finally:
        os.umask(before)
    (pack,) = (model / ".callgate").glob("*.pack")
    assert pack.stat().st_mode & 0o777 == (mode | 0o600) & ~0o022


def test_names_that_are_not_text(tmp_path):
    model = save(make_model("qwen3"), tmp_path / os.fsdecode(b"mod\xffel"))
    pack = pack_path(model, "int8", lambda: tmp_path)
    assert re.fullmatch(rb"mod\xffel-int8-[0-9a-f]{16}\.pack", os.fsencode(pack.name))
