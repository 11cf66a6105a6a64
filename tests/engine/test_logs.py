"""Log lines: in order while somebody reads, dropped and counted while nobody does, and never waited for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from engine.logs import PatientHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:
            continue


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("test", logging.INFO, "", 0, text, None, None)


def fill(fd: int) -> int:
    """Write until nothing more fits; how many bytes that were."""
    os.set_blocking(fd, False)
    count = 0
    try:
        while True:
            count += os.write(fd, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(fd, True)
        return count


def read(fd: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        data += os.read(fd, 1 << 16)
    return data


def test_lines_come_in_order(pipe: tuple[int, int]) -> None:
    handler = PatientHandler(pipe[1])
    for number in range(500):
        handler.emit(record(f"line {number}"))
    handler.flush()
    assert read(pipe[0], b"line 499\n").decode().splitlines() == [f"line {number}" for number in range(500)]


def test_nobody_waits_for_a_reader_that_has_stopped(pipe: tuple[int, int]) -> None:
    before = fill(pipe[1])
    handler = PatientHandler(pipe[1], max_bytes=2_000)
    done = threading.Event()

    def emit() -> None:
        for number in range(1_000):
            handler.emit(record(f"line {number:03}"))
        done.set()

    threading.Thread(target=emit, daemon=True).start()
    assert done.wait(30), "a log line waited for its reader"
    data = read(pipe[0], b"because nobody read them\n")[before:]
    lines = data.decode().splitlines()
    kept = len(lines) - 1
    assert lines[:kept] == [f"line {number:03}" for number in range(kept)]
    assert lines[-1].startswith(f"{1_000 - kept} log lines")
    assert 0 < kept * 9 <= 2_000
    handler.emit(record("again"))
    assert read(pipe[0], b"\n") == b"again\n"


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    handler = PatientHandler(pipe[1])
    for _ in range(3):
        handler.emit(record("nobody hears this"))
        handler.flush()


def test_the_end_of_a_process_waits_for_its_last_line() -> None:
    program = (
        "import logging, sys\nfrom engine.logs import PatientHandler\n"
        "logging.basicConfig(handlers=[PatientHandler()])\nlogging.error('the last words')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.endswith("the last words\n")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_opened(closed: str) -> None:
    program = (
        "import os, sys\nfrom engine.logs import open_standard_streams\nopen_standard_streams()\n"
        "print(sys.stdout.isatty(), sys.stderr.isatty(), flush=True)\nprint(1, file=sys.stderr, flush=True)\n"
        "ends = os.pipe()\nos._exit(0 if min(ends) > 2 and [os.fstat(n) for n in range(3)] else 1)\n"
    )
    command = ["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program]
    assert subprocess.run(command, check=False).returncode == 0
