"""Processes killed, stopped, orphaned and fed with rubbish: clients learn of it in time, and service resumes."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time

import msgspec
import psutil
import pytest
import zmq

from engine.client import EngineUnavailable
from engine.launch import Engine, SupervisorLimits, launch, make_plan
from engine.messages import AbortReq, BatchTokenIDOut, StatsReq, TokenIDRow
from tests.e2e.engines import QUICK, alive, collect, golden, hash_lm, request, run_dirs, scaled, text_of, until

pytestmark = pytest.mark.e2e

SLOW = {"hash_lm_delay": 0.005}


async def start_streams(engine, count, **sampling):
    """``count`` streams that run for long, all of them past their first delta."""
    first = [asyncio.Event() for _ in range(count)]

    async def one(index: int):
        outputs = []
        async for output in engine.generate(request(f"stream {index}", max_tokens=8000, **sampling)):
            outputs.append(output)
            first[index].set()
        return outputs

    tasks = [asyncio.create_task(one(index)) for index in range(count)]
    await asyncio.gather(*[event.wait() for event in first])
    return tasks


@pytest.mark.parametrize("victim", ["model", "detokenizer"])
async def test_kill_9_under_32_streams(victim, run_dir):
    rounds = scaled(3)
    limits = SupervisorLimits(max_crashes=rounds + 1)
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=limits) as engine:
        before = await golden(engine)
        for _ in range(rounds):
            tasks = await start_streams(engine, 32)
            pids = engine.pids
            os.kill(pids[victim], signal.SIGKILL)
            start = time.monotonic()
            results = await asyncio.gather(*tasks)
            assert time.monotonic() - start < 2
            for outputs in results:
                assert outputs[-1].finish_reason.type == "error"
                assert outputs[-1].finish_reason.status == 503
                assert outputs[-1].finish_reason.message == "The engine stopped while this request was running."
            with pytest.raises(EngineUnavailable):
                await collect(engine, request("too early"))
            seconds = await until(lambda: engine.state == "ready", 10)
            assert engine.pids[victim] != pids[victim]
            assert await golden(engine) == before
            stats = await engine.stats()
            assert (stats.running, stats.waiting) == (0, 0)
        print(f"{rounds} x SIGKILL of the {victim} process: ready again after {seconds:.1f} s")


async def test_requests_of_a_dead_engine_are_not_replayed(run_dir):
    async with launch(hash_lm(run_dir=str(run_dir), hash_lm_delay=0.05)) as engine:
        tasks = [asyncio.create_task(collect(engine, request("x" * 400, max_tokens=100))) for _ in range(8)]
        await asyncio.sleep(0.02)
        os.kill(engine.pids["model"], signal.SIGKILL)
        await asyncio.gather(*tasks)
        await until(lambda: engine.state == "ready", 10)
        stats = await engine.stats()
        assert stats.prefill_tokens <= 1  # the self-test's one token
        assert stats.running == stats.waiting == 0


async def test_a_stopped_engine_is_noticed_and_replaced(run_dir):
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=QUICK) as engine:
        before = await golden(engine)
        tasks = await start_streams(engine, 8)
        pid = engine.pids["model"]
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: engine.state != "ready", 3)
        results = await asyncio.wait_for(asyncio.gather(*tasks), 6)
        assert {outputs[-1].finish_reason.type for outputs in results} == {"error"}
        await until(lambda: engine.state == "ready", 10)
        assert not alive(pid)
        assert await golden(engine) == before


async def test_a_short_stop_costs_readiness_but_no_request(run_dir):
    limits = SupervisorLimits(suspect=0.7, frozen=20.0, check_interval=0.1)
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=limits) as engine:
        task = asyncio.create_task(collect(engine, request("x", max_tokens=300)))
        await asyncio.sleep(0.1)
        pid = engine.pids["model"]
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: engine.state == "restarting", 3)
        os.kill(pid, signal.SIGCONT)
        await until(lambda: engine.state == "ready", 3)
        assert (await task)[-1].finish_reason.type == "length"
        assert engine.pids["model"] == pid


async def test_a_pause_of_all_processes_costs_no_request(run_dir):
    """As where a virtual machine is stopped: this process runs again before the others do."""
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=QUICK) as engine:
        task = asyncio.create_task(collect(engine, request("x", max_tokens=300)))
        await asyncio.sleep(0.1)
        pids = engine.pids
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_soon(time.sleep, QUICK.frozen + 1.5)
        await asyncio.sleep(0)
        await asyncio.sleep(QUICK.suspect / 2)
        assert engine.pids == pids
        for pid in pids.values():
            os.kill(pid, signal.SIGCONT)
        assert (await task)[-1].finish_reason.type == "length"
        assert engine.pids == pids


async def test_a_stopped_detokenizer_is_replaced_alone(run_dir):
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=QUICK) as engine:
        tasks = await start_streams(engine, 4)
        pids = engine.pids
        os.kill(pids["detokenizer"], signal.SIGSTOP)
        results = await asyncio.wait_for(asyncio.gather(*tasks), 8)
        assert {outputs[-1].finish_reason.type for outputs in results} == {"error"}
        await until(lambda: engine.state == "ready", 10)
        assert engine.pids["model"] == pids["model"]
        assert await text_of(engine, request("works"))


@pytest.mark.parametrize("victim", ["model", "detokenizer"])
@pytest.mark.parametrize("removed", ["api.sock", "model-*", "*", "directory", "parent"])
async def test_who_cleans_up_the_run_dir_ends_nothing(victim, removed, run_dir):
    """Those inside go on, and what crashes afterwards is replaced."""
    parent = run_dir / "parent"
    async with launch(hash_lm(run_dir=str(parent), **SLOW)) as engine:
        before = await golden(engine)
        (made,) = parent.iterdir()
        if removed in ("directory", "parent"):
            shutil.rmtree(made if removed == "directory" else parent)
        for file in made.glob(removed):
            file.unlink()
        assert await golden(engine) == before
        os.kill(engine.pids[victim], signal.SIGKILL)
        await until(lambda: engine.state == "restarting", 2)
        await until(lambda: engine.state == "ready", 10)
        assert await golden(engine) == before
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert not made.exists()


async def test_a_run_dir_that_somebody_else_has_made_again_is_not_used(run_dir):
    limits = SupervisorLimits(max_crashes=2, max_backoff=0.2)
    async with launch(hash_lm(run_dir=str(run_dir), **SLOW), limits=limits) as engine:
        (made,) = run_dir.iterdir()
        shutil.rmtree(made)
        made.mkdir()
        made.chmod(0o777)
        os.kill(engine.pids["model"], signal.SIGKILL)
        assert "somebody else" in await asyncio.wait_for(engine.failure(), 10)


async def test_too_many_crashes_end_the_engine_with_one_line(run_dir):
    limits = SupervisorLimits(max_crashes=5, max_backoff=0.2)
    async with launch(hash_lm(run_dir=str(run_dir)), limits=limits) as engine:
        failure = asyncio.create_task(engine.failure())
        while not failure.done():
            pid = engine.pids.get("model")
            if pid is not None and engine.state == "ready":
                os.kill(pid, signal.SIGKILL)
                await until(lambda pid=pid: engine.pids.get("model") != pid, 2)
            await asyncio.sleep(0.01)
        assert "giving up after 5 engine failures" in failure.result()
        assert "\n" not in failure.result()
        assert engine.state == "dead"
        with pytest.raises(EngineUnavailable):
            await collect(engine, request("no"))
        assert engine.pids == {}


async def test_starts_that_all_fail_end_the_engine_too(run_dir):
    """Each failure long after the one before: the window alone would never give up."""
    fails = ("sh", "-c", "exit 3")
    limits = SupervisorLimits(max_crashes=3, crash_window=0.001, max_backoff=0.1)
    good = make_plan(hash_lm(run_dir=str(run_dir)))
    commands = iter([good.model_command])

    class Plan:
        """The first start works, all later ones end at once."""

        def __getattr__(self, name):
            return next(commands, fails) if name == "model_command" else getattr(good, name)

    engine = Engine(good.config, limits=limits, plan=lambda _: Plan())
    await engine.start()
    try:
        os.kill(engine.pids["model"], signal.SIGKILL)
        line = await asyncio.wait_for(engine.failure(), 10)
        assert "giving up after 3 engine failures" in line
        assert "ended with status 3" in line
    finally:
        await engine.stop()


@pytest.fixture
def descriptors():
    """Call it with a number to allow no new descriptors from there on; without one, as many as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(count: int = soft) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))

    yield limit
    limit()


async def test_an_engine_that_dies_while_descriptors_are_short_comes_back(run_dir, descriptors):
    limits = SupervisorLimits(max_crashes=1000, max_backoff=0.05)
    async with launch(hash_lm(run_dir=str(run_dir)), limits=limits) as engine:
        before, pids = await golden(engine), engine.pids
        descriptors(3)
        os.kill(pids["model"], signal.SIGKILL)
        await until(lambda: engine.state == "restarting", 5)
        await asyncio.sleep(0.3)
        assert engine.state == "restarting"
        descriptors()
        await until(lambda: engine.state == "ready", 15)
        assert await golden(engine) == before
        assert len(engine.pids) == 2


async def test_descriptors_that_stay_short_end_the_engine_with_one_line(run_dir, descriptors):
    limits = SupervisorLimits(max_crashes=3, max_backoff=0.05)
    async with launch(hash_lm(run_dir=str(run_dir)), limits=limits) as engine:
        descriptors(3)
        os.kill(engine.pids["model"], signal.SIGKILL)
        line = await asyncio.wait_for(engine.failure(), 10)
        assert line.startswith("giving up after 3 engine failures")
        assert "Too many open files" in line
        assert engine.pids == {}
        descriptors()


# ---------------------------------------------------------------- whole servers, with their signals


class Server:
    """``python -m tests.e2e.engine_server`` as a child, read line by line."""

    def __init__(self, run_dir, *options: str) -> None:
        command = [sys.executable, "-m", "tests.e2e.engine_server", "--run-dir", str(run_dir), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.run_dir = run_dir
        line = self.process.stdout.readline()
        assert line.startswith("ready"), line + self.process.stderr.read()
        self.pids = [int(pid) for pid in line.split()[1:]]

    def lines(self, timeout: float) -> tuple[list[str], str]:
        out, err = self.process.communicate(timeout=timeout)
        return out.split("\n"), err

    def assert_nothing_left(self, within: float) -> None:
        deadline = time.monotonic() + within
        while any(alive(pid) for pid in self.pids):
            assert time.monotonic() < deadline, "an orphan lives"
            time.sleep(0.02)


@pytest.fixture
def start_server(run_dir):
    servers = []

    def start(*options: str) -> Server:
        servers.append(Server(run_dir, *options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_first_signal_drains(start_server, number):
    server = start_server("--streams", "32", "--tokens", "150")
    os.kill(server.process.pid, number)
    lines, err = server.lines(20)
    assert server.process.returncode == 0, err
    assert lines.count("stream length") == 32
    assert "new request refused: 503 retry_after=5" in lines
    assert "Traceback" not in err
    server.assert_nothing_left(1)
    assert run_dirs(server.run_dir) == []


def test_the_second_signal_ends_at_once_with_errors(start_server):
    server = start_server("--streams", "16", "--tokens", "8000")
    os.kill(server.process.pid, signal.SIGTERM)
    time.sleep(0.3)
    start = time.monotonic()
    os.kill(server.process.pid, signal.SIGTERM)
    lines, err = server.lines(10)
    assert time.monotonic() - start < 2
    assert server.process.returncode == 0, err
    assert lines.count("stream error The server is shutting down.") == 16
    server.assert_nothing_left(1)
    assert run_dirs(server.run_dir) == []


def test_the_drain_has_a_limit(start_server):
    server = start_server("--streams", "4", "--tokens", "8000", "--drain-timeout", "0.5")
    start = time.monotonic()
    os.kill(server.process.pid, signal.SIGTERM)
    lines, _ = server.lines(10)
    assert time.monotonic() - start < 4
    assert lines.count("stream error The server is shutting down.") == 4
    server.assert_nothing_left(1)


def test_sigkill_of_the_supervisor_leaves_no_orphan(start_server):
    for _ in range(scaled(3)):
        server = start_server("--streams", "8", "--tokens", "8000")
        assert len(server.pids) == 2
        server.process.kill()
        server.process.wait(5)
        server.assert_nothing_left(5)


def test_a_stopped_child_does_not_outlive_a_killed_supervisor(start_server):
    server = start_server("--streams", "1", "--tokens", "8000")
    os.kill(server.pids[0], signal.SIGSTOP)
    server.process.kill()
    server.process.wait(5)
    server.assert_nothing_left(5)


def test_a_signal_while_starting_leaves_nothing(run_dir):
    command = [sys.executable, "-m", "tests.e2e.engine_server", "--run-dir", str(run_dir), "--start-delay", "30"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 10
    while not (children := parent.children()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=5)
    assert process.returncode == 0, err
    assert not any(alive(child.pid) for child in children)
    assert run_dirs(run_dir) == []


# ---------------------------------------------------------------- rubbish on the sockets


def _frames(rng: random.Random, valid: list[bytes]):
    kind = rng.randrange(5)
    base = bytearray(rng.choice(valid))
    if kind == 0:
        return [rng.randbytes(rng.randrange(0, 200))]
    if kind == 1:
        return [bytes(base[: rng.randrange(len(base))])]
    if kind == 2:
        for _ in range(rng.randint(1, 4)):
            base[rng.randrange(len(base))] ^= 1 << rng.randrange(8)
        return [bytes(base)]
    if kind == 3:
        return [b"\x80\x04\x95" + rng.randbytes(30), bytes(base)]  # pickle's head, and two frames
    return [b"\x91" * rng.randrange(1, 5000)]  # nesting


async def _push(socket: zmq.Socket, frames: list[bytes]) -> None:
    """Send without blocking this event loop: one of the readers lives on it."""
    while True:
        try:
            return socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            await asyncio.sleep(0.001)


async def test_fuzzed_frames_end_no_process(run_dir):
    count = scaled(10_000)
    rng = random.Random(5)
    row = TokenIDRow(rid="nobody", token_ids=(1, 2, 3), completion_tokens=3)
    valid = [
        msgspec.msgpack.encode(message)
        for message in (AbortReq(rid="nobody"), StatsReq(rid="nobody"), BatchTokenIDOut(rows=(row,) * 3))
    ]
    async with launch(hash_lm(run_dir=str(run_dir))) as engine:
        before, pids = await golden(engine), engine.pids
        context = zmq.Context()
        for path in sorted(engine.run_dir.iterdir()):
            with context.socket(zmq.PUSH) as socket:
                socket.connect(f"ipc://{path}")
                for index in range(count):
                    await _push(socket, _frames(rng, valid))
                    if index % 500 == 0:
                        assert await golden(engine) == before
                await _push(socket, [b"\x00" * (64 << 20) + b"!"])
                await asyncio.sleep(0.1)
        context.destroy(linger=0)
        assert await golden(engine) == before
        assert engine.pids == pids
        assert engine.state == "ready"
        await until(lambda: min(engine.dropped_frames.values()) > count // 2, 3)
        print(f"{count} frames to each of 3 sockets, 0 exits, dropped: {engine.dropped_frames}")
