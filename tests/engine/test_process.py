"""Child processes, their status pipe, and how the parent tells a long step from a frozen process."""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest

from engine.child import (
    BEAT_INTERVAL,
    Beat,
    DetokenizerSpec,
    FrameReader,
    Started,
    StartFailed,
    StatusPipe,
    frame,
    one_line,
)
from engine.grammar.check import GrammarChecker
from engine.messages import GrammarSpec, ModelInfo
from engine.platform.modules import module_command
from engine.process import Child


class Spec(msgspec.Struct, frozen=True):
    status_fd: int
    parent_pid: int
    word: str = "hello"


CHILD = (
    "import sys, time\n"
    "from engine.child import *\n"
    "import msgspec\n"
    "class Spec(msgspec.Struct): status_fd: int; parent_pid: int; word: str\n"
    "spec = read_spec(Spec)\n"
    "status = StatusPipe(spec.status_fd)\n"
)


def start(body: str) -> Child:
    command = (sys.executable, "-c", CHILD + body)
    return Child("test", command, lambda fd: Spec(status_fd=fd, parent_pid=os.getpid()))


async def wait(future, seconds=10.0):
    return await asyncio.wait_for(asyncio.shield(future), seconds)


async def test_settings_arrive_and_the_handshake_comes_back():
    child = start("status.failed('got ' + spec.word); time.sleep(60)\n")
    assert await wait(child.started) == StartFailed(reason="got hello")
    await child.end()
    assert "killed by SIGKILL" in child.describe_exit()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="torch may use the same library there")
async def test_numpy_starts_no_threads_of_its_own(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    counts = []
    for imported in ("json", "numpy"):
        child = start(f"import os, {imported}; status.failed(str(len(os.listdir('/proc/self/task'))))\n")
        counts.append(await wait(child.started))
        await child.end()
    assert counts[0] == counts[1]


async def test_last_words_are_heard_though_the_process_is_gone():
    child = start("status.started(); status.beat(step=7, dropped=3); sys.exit(4)\n")
    assert await wait(child.exited) == 4
    assert child.started.result() == Started()
    assert (child.step, child.dropped) == (7, 3)
    assert child.describe_exit() == "the test process ended with status 4"
    await child.end()


async def test_a_child_that_cannot_even_read_its_settings():
    child = Child("test", ("false",), lambda fd: Spec(status_fd=fd, parent_pid=1))
    assert await wait(child.exited) == 1
    assert not child.started.done()


async def test_a_command_that_does_not_exist():
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(FileNotFoundError):
        Child("test", ("/no/such/command",), lambda fd: Spec(status_fd=fd, parent_pid=1))
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_nothing_is_left_of_a_child():
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        child = start("status.started(); time.sleep(60)\n")
        await wait(child.started)
        await child.end()
    assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_a_child_ends_when_its_stdin_does():
    child = start("status.started(); time.sleep(60)\n")
    await wait(child.started)
    child._process.stdin.close()
    assert await wait(child.exited) == 0


async def test_a_child_of_another_parent_does_not_start():
    command = (sys.executable, "-c", CHILD + "status.started(); time.sleep(60)\n")
    child = Child("test", command, lambda fd: Spec(status_fd=fd, parent_pid=1 << 22))
    assert await wait(child.exited) == 1
    assert not child.started.done()


async def test_signals_for_the_terminals_group_are_ignored():
    child = start("status.started(); time.sleep(60)\n")
    await wait(child.started)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, number)
    await asyncio.sleep(0.2)
    assert not child.exited.done()
    await child.end()


async def quiet_after(child: Child, seconds: float) -> float:
    deadline = time.monotonic() + seconds
    quiet = 0.0
    while time.monotonic() < deadline:
        quiet = child.check(time.monotonic())
        await asyncio.sleep(0.05)
    return quiet


async def test_a_long_step_is_no_freeze_but_a_stop_and_a_deadlock_are():
    busy = start("status.started()\nwhile True: pass\n")
    stuck = start("status.started(); time.sleep(60)\n")
    stopped = start("status.started()\nwhile True: pass\n")
    for child in (busy, stuck, stopped):
        await wait(child.started)
    os.kill(stopped.pid, signal.SIGSTOP)
    measured = await asyncio.gather(*[quiet_after(child, 1.5) for child in (busy, stuck, stopped)])
    assert measured[0] < 0.8 < measured[1]
    assert measured[2] > 0.8
    for child in (busy, stuck, stopped):
        await child.end()


async def test_beats_are_progress():
    child = start("status.started()\nwhile True: status.beat(); time.sleep(0.1)\n")
    await wait(child.started)
    assert await quiet_after(child, 1.5) < BEAT_INTERVAL + 0.4
    await child.end()


# ---------------------------------------------------------------- frames


INFO = ModelInfo(
    model_path="m",
    served_name="m",
    architecture="a",
    context_length=1,
    vocab_size=1,
    eos_token_ids=(),
    kv_capacity_tokens=1,
    max_running_requests=1,
    device="cpu",
    dtype="x",
)


def test_frames_survive_any_cut():
    sent = [Started(model=INFO), Beat(step=1), StartFailed(reason="é"), Beat(step=2, dropped=3)]
    data = b"".join(map(frame, sent))
    for size in (1, 2, 3, 7, 64, len(data)):
        reader = FrameReader()
        received = [message for at in range(0, len(data), size) for message in reader.feed(data[at : at + size])]
        assert received == sent


def test_a_stream_of_something_else_is_refused():
    with pytest.raises(ValueError, match="too large"):
        FrameReader().feed(b"Traceback (most recent call last)")
    with pytest.raises(msgspec.MsgspecError):
        FrameReader().feed(b"\x01\x00\x00\x00\xc1")


async def test_rubbish_on_the_status_pipe_ends_nothing_here():
    child = start("import os; os.write(spec.status_fd, b'x' * 1000); time.sleep(0.2)\n")
    assert await wait(child.exited) == 0
    assert not child.started.done()


def test_a_full_status_pipe_does_not_block_the_loop():
    read_end, write_end = os.pipe()
    status = StatusPipe(write_end)
    status.started()
    for _ in range(10_000):
        status._last_beat = -BEAT_INTERVAL
        status.beat(step=1)
    os.close(read_end)
    os.close(write_end)


def test_errors_as_one_line():
    assert one_line(ValueError("a\n  b")) == "a b"
    assert one_line(MemoryError()) == "there is not enough memory."
    assert one_line(KeyError()) == "KeyError"


async def test_without_a_descriptor_to_watch_it_the_process_is_not_left_behind(monkeypatch):
    begun: list[int] = []

    def refuse(pid: int) -> int:
        begun.append(pid)
        raise OSError(errno.EMFILE, "Too many open files")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        start("time.sleep(60)\n")
    with pytest.raises(ProcessLookupError):
        os.kill(begun[0], 0)
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_child_that_cannot_be_looked_at_is_not_called_frozen(monkeypatch):
    child = start("status.started(); time.sleep(60)\n")
    await wait(child.started)

    def refuse(*args: object, **kwargs: object) -> str:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_text", refuse)
    assert child.check(time.monotonic() + 100) == 0
    monkeypatch.undo()
    await child.end()
    assert child.check(child.last_progress + 100) == 100


async def test_what_lies_in_the_users_directory_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "engine").mkdir()
    for name in ("engine/__init__.py", "queue.py", "msgspec.py"):
        (tmp_path / name).write_text("raise SystemExit('that of the user')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def settings(fd: int) -> DetokenizerSpec:
        sockets = {name: f"{tmp_path}/{name}" for name in ("inbox", "outbox", "aborts")}
        return DetokenizerSpec(tokenizer_path=f"{tmp_path}/none", status_fd=fd, parent_pid=os.getpid(), **sockets)

    child = Child("text", module_command("engine.detokenizer_process"), settings)
    said = await wait(child.started, 60)
    assert isinstance(said, StartFailed)
    assert "none" in said.reason, "it has read its settings, so it has begun"
    await child.end()
    checker = GrammarChecker()
    await checker.check(GrammarSpec(kind="regex", source="a+"))  # raises CheckFailed where its process does not start
    await checker.close()
