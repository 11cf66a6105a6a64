from __future__ import annotations

import ctypes
import os
import time

import pytest

from engine.kernels.cpu.linear import Context
from engine.kernels.cpu.loader import load
from tests.engine.kernels.cpu.linear_cases import LEVELS

pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")
REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)


@pytest.fixture(params=[1, 2, 5])
def pool(request: pytest.FixtureRequest):
    made = Context(request.param)
    yield made
    made.close()


def test_every_thread_runs_a_region_once(pool: Context) -> None:
    lib = load()
    lib.cg_region.argtypes = [ctypes.c_void_p, REGION, ctypes.c_void_p]
    seen: list[tuple[int, int]] = []
    body = REGION(lambda _, tid, n: seen.append((tid, n)))
    for _ in range(50):
        seen.clear()
        lib.cg_region(pool.handle, body, None)
        assert sorted(seen) == [(t, pool.threads) for t in range(pool.threads)]


def test_every_task_runs_once(pool: Context) -> None:
    lib = load()
    lib.cg_parallel_for.argtypes = [ctypes.c_void_p, TASK, ctypes.c_void_p, ctypes.c_int]
    for count in (0, 1, 7, 100):
        seen: list[int] = []
        lib.cg_parallel_for(pool.handle, TASK(lambda _, task, tid: seen.append(task)), None, count)  # noqa: B023
        assert sorted(seen) == list(range(count))


def test_barrier_separates_the_steps(pool: Context) -> None:
    lib = load()
    lib.cg_region.argtypes = [ctypes.c_void_p, REGION, ctypes.c_void_p]
    lib.cg_barrier.argtypes = [ctypes.c_void_p]
    done = [0] * pool.threads
    behind: list[int] = []

    def body(_: int, tid: int, n: int) -> None:
        for step in range(1, 20):
            done[tid] = step
            lib.cg_barrier(pool.handle)
            behind.extend(d for d in done if d < step)
            lib.cg_barrier(pool.handle)

    lib.cg_region(pool.handle, REGION(body), None)
    assert done == [19] * pool.threads
    assert not behind


def test_idle_workers_sleep() -> None:
    pool = Context(3)
    lib = load()
    lib.cg_region.argtypes = [ctypes.c_void_p, REGION, ctypes.c_void_p]
    lib.cg_region(pool.handle, REGION(lambda *_: None), None)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05
    pool.close()


def test_many_pools_come_and_go() -> None:
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else None
    for _ in range(30):
        Context(4).close()
    if threads is not None:
        assert len(os.listdir("/proc/self/task")) <= threads


def test_the_caller_keeps_its_cores() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinity here")
    before = os.sched_getaffinity(0)
    pool = Context(0)
    lib = load()
    lib.cg_region.argtypes = [ctypes.c_void_p, REGION, ctypes.c_void_p]
    for _ in range(20):
        lib.cg_region(pool.handle, REGION(lambda *_: None), None)
        time.sleep(0.002)
    assert os.sched_getaffinity(0) == before
    pool.close()
