from __future__ import annotations

import asyncio
import errno
import os
import random
import stat
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import zmq

from engine import ipc
from engine.ipc import Inbox, Outbox, PipeBlocked, make_run_dir, remove_run_dir
from engine.messages import (
    AbortReq,
    BatchTokenIDOut,
    FlushCacheReq,
    SchedulerInput,
    SchedulerOutput,
    StatsReq,
    TokenIDRow,
)


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def inbox(context, tmp_path):
    with closing(Inbox(context, str(tmp_path / "in.sock"), SchedulerInput)) as inbox:
        yield inbox


def gather(inbox: Inbox, count: int) -> list:
    messages = []
    for _ in range(100):
        messages += inbox.receive(timeout=0.05)
        if len(messages) >= count:
            break
    return messages


def test_messages_arrive_in_order_and_typed(context, inbox, tmp_path):
    sent = [AbortReq(rid="a"), StatsReq(rid="b"), FlushCacheReq(rid="c"), AbortReq(rid="d", stop_matched="x")]
    with closing(Outbox(context, str(tmp_path / "in.sock"))) as outbox:
        for message in sent:
            outbox.send(message)
        assert gather(inbox, 4) == sent
    assert inbox.dropped == 0


def test_an_empty_inbox_waits_no_longer_than_asked(inbox):
    assert inbox.receive() == []
    assert inbox.receive(timeout=0.01) == []


def test_sockets_are_the_owners_and_go_with_the_inbox(context, tmp_path):
    path = tmp_path / "x.sock"
    inbox = Inbox(context, str(path), SchedulerInput)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    inbox.close()
    assert not path.exists()


def test_what_is_no_message_is_dropped_and_counted(context, inbox, tmp_path):
    good = msgspec.msgpack.encode(AbortReq(rid="good"))
    bad = [
        b"",
        b"\x80\x04\x95",
        good[:-1],
        good + b"x",
        b"\x91" * 100_000,
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\x00" * 9,
    ]
    with context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{tmp_path}/in.sock")
        for frame in bad:
            socket.send(frame)
            socket.send(good)
        socket.send_multipart([good, good])
        socket.send(good)
        messages = gather(inbox, len(bad) + 1)
    assert messages == [AbortReq(rid="good")] * (len(bad) + 1)
    assert inbox.dropped == len(bad) + 1


def test_random_frames_never_raise(context, inbox, tmp_path):
    rng = random.Random(8)
    valid = msgspec.msgpack.encode(AbortReq(rid="abc", stop_matched="x"))
    with context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{tmp_path}/in.sock")
        for _ in range(3000):
            frame = bytearray(valid)
            for _ in range(rng.randint(0, 5)):
                frame[rng.randrange(len(frame))] = rng.randrange(256)
            socket.send(bytes(frame))
        seen = 0
        while seen + inbox.dropped < 3000:
            seen += len(inbox.receive(timeout=1))
    assert seen > 100
    assert inbox.dropped > 100


def test_large_messages_are_read_a_few_at_a_time(context, inbox, tmp_path, monkeypatch):
    """So that reading what one client sent holds nobody else up for long. What is left is known to be there."""
    monkeypatch.setattr(ipc, "RECEIVE_BYTES", 1000)
    sent = [AbortReq(rid=str(index) + "x" * size) for index, size in enumerate([900, 900, 900, 5000, 1, 1])]
    with closing(Outbox(context, str(tmp_path / "in.sock"))) as outbox:
        for message in sent:
            outbox.send(message)
        parts = []
        while sum(map(len, parts)) < len(sent):
            part = inbox.receive(timeout=0.05)
            if part:
                assert sum(len(message.rid) for message in part[:-1]) < 1000
                parts.append(part)
                assert not inbox.drained or part[-1] == sent[-1]
        assert inbox.receive() == []
        assert inbox.drained
    assert [message for part in parts for message in part] == sent


def test_a_batch_beyond_the_reader_s_limit_comes_in_parts(context, tmp_path, monkeypatch):
    """The reader drops a larger frame whole, and every request in it would wait for ever."""
    monkeypatch.setattr(ipc, "MAX_MESSAGE_BYTES", 2000)
    rows = tuple(TokenIDRow(rid=f"{index:0300}", completion_tokens=index) for index in range(13))
    path = str(tmp_path / "out.sock")
    with closing(Inbox(context, path, SchedulerOutput)) as inbox, closing(Outbox(context, path)) as outbox:
        outbox.send(BatchTokenIDOut(rows=rows))
        outbox.send(BatchTokenIDOut(rows=rows[:1]))
        messages: list[BatchTokenIDOut] = []
        while sum(len(message.rows) for message in messages) < 14:
            messages += inbox.receive(timeout=0.05)
        with pytest.raises(ValueError, match="2000 bytes"):
            outbox.send(AbortReq(rid="x" * 3000))
    assert [row for message in messages for row in message.rows] == [*rows, rows[0]]
    assert inbox.dropped == 0


def test_a_reader_that_is_away_blocks_the_sender_only_so_long(context, tmp_path, monkeypatch):
    monkeypatch.setattr(ipc, "HIGH_WATER_MARK", 3)
    with closing(Outbox(context, str(tmp_path / "nobody.sock"), send_timeout=0.05)) as outbox:
        for _ in range(3):
            outbox.send(StatsReq(rid="x"))
        with pytest.raises(PipeBlocked):
            outbox.send(StatsReq(rid="x"))


async def test_the_descriptor_wakes_an_event_loop(context, inbox, tmp_path):
    loop, woken = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(inbox.fd, woken.set)
    inbox.receive()
    with closing(Outbox(context, str(tmp_path / "in.sock"))) as outbox:
        for index in range(20):
            woken.clear()
            outbox.send(StatsReq(rid=str(index)))
            received = []
            async with asyncio.timeout(2):
                while not received:
                    await woken.wait()
                    woken.clear()
                    received = inbox.receive()
            assert received == [StatsReq(rid=str(index))]
    loop.remove_reader(inbox.fd)


async def test_rubbish_does_not_put_the_descriptor_to_sleep(context, inbox, tmp_path):
    """More malformed frames than one turn handles, then a message: the edge has come long before it."""
    loop, received = asyncio.get_running_loop(), asyncio.Event()
    messages = []

    def turn():
        messages.extend(inbox.receive(limit=4))
        if messages:
            received.set()
        if not inbox.drained:
            loop.call_soon(turn)

    loop.add_reader(inbox.fd, turn)
    with context.socket(zmq.PUSH) as socket:
        socket.connect(f"ipc://{tmp_path}/in.sock")
        for round_number in range(20):
            for _ in range(10):
                socket.send(b"rubbish")
            socket.send(msgspec.msgpack.encode(StatsReq(rid=str(round_number))))
            await asyncio.wait_for(received.wait(), 2)
            assert messages == [StatsReq(rid=str(round_number))]
            messages.clear()
            received.clear()
    loop.remove_reader(inbox.fd)
    assert inbox.dropped == 200


def test_the_run_dir_is_private_new_and_removed_whole(tmp_path):
    first, second = make_run_dir(str(tmp_path)), make_run_dir(str(tmp_path))
    assert first != second
    assert stat.S_IMODE(first.stat().st_mode) == 0o700
    (first / "left.sock").touch()
    remove_run_dir(first)
    remove_run_dir(first)
    assert not first.exists()


def test_a_missing_parent_is_made_private(run_dir):
    parent = run_dir / "new"
    made = make_run_dir(str(parent))
    assert stat.S_IMODE(parent.stat().st_mode) == 0o700
    assert made.parent == parent


PLACES = ("XDG_RUNTIME_DIR", "/run/user/1000000000", "TMPDIR", "TEMP", "TMP", "/tmp", "/var/tmp", "/dev/shm")


@pytest.mark.parametrize(
    "refusal", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT, errno.EDQUOT, "too long", ""]
)
@pytest.mark.parametrize("good", range(len(PLACES)))
def test_the_first_place_that_takes_a_run_dir_is_used(monkeypatch, good, refusal):
    """Whatever is wrong with those before it: a full or read-only disk, or a path too long for a socket."""
    wanted, tried = {}, []
    for index, name in enumerate(PLACES):
        place = name if name.startswith("/") else f"/place/{index}"
        if not name.startswith("/"):
            monkeypatch.setenv(name, place if index >= good or refusal else "relative")
        wanted[place] = index
    monkeypatch.setattr(os, "getuid", lambda: 10**9)

    def mkdtemp(prefix, dir):
        tried.append(wanted[dir])
        if wanted[dir] >= good:
            return f"{dir}/{prefix}x"
        if refusal == "too long":
            return f"{dir}/{'x' * 100}"
        raise OSError(refusal or errno.ENOENT, "refused")

    monkeypatch.setattr(ipc.tempfile, "mkdtemp", mkdtemp)
    monkeypatch.setattr(Path, "rmdir", lambda self: None)
    assert str(make_run_dir()) == f"{list(wanted)[good]}/callgate-x"
    if refusal:
        assert tried == list(range(good + 1))


def test_no_place_for_a_run_dir_is_one_line(monkeypatch):
    def mkdtemp(**_):
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(ipc.tempfile, "mkdtemp", mkdtemp)
    with pytest.raises(OSError, match="--run-dir"):
        make_run_dir()


def test_a_directory_too_long_for_a_socket_is_refused_and_not_left_behind(tmp_path):
    parent = tmp_path / ("x" * 80)
    with pytest.raises(OSError, match="too long"):
        make_run_dir(str(parent))
    assert list(parent.iterdir()) == []
