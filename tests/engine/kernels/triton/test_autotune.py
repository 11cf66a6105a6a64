"""The table of measured settings: bounded, kept on disk, and never trusted blindly."""

from __future__ import annotations

import json

import pytest
import triton

from engine.kernels.triton.autotune import TuneTable, tune_table
from engine.kernels.triton.common import INTERPRETED

CANDIDATES = ({"BLOCK": 16}, {"BLOCK": 32}, {"BLOCK": 64})


class Clock:
    """Measures what a run says about itself."""

    def __init__(self, times: dict[int, float]) -> None:
        self.times = times
        self.runs: list[int] = []

    def run(self, config) -> None:
        self.runs.append(config["BLOCK"])

    def measure(self, run) -> float:
        run()
        return self.times[self.runs[-1]]


def test_the_fastest_candidate_is_measured_once_and_kept_on_disk(tmp_path):
    path = tmp_path / "a" / "gpu.json"
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0})
    table = TuneTable(path, clock.measure)
    for _ in range(3):
        assert table.pick("k", (1, 2), CANDIDATES, clock.run) == {"BLOCK": 32}
    assert clock.runs == [16, 32, 64]
    again = TuneTable(path, clock.measure)
    assert again.pick("k", (1, 2), CANDIDATES, clock.run) == {"BLOCK": 32}
    assert clock.runs == [16, 32, 64]
    again.pick("k", (1, 3), CANDIDATES, clock.run)
    assert len(clock.runs) == 6
    assert path.stat().st_mode & 0o077 == 0 or path.parent.stat().st_mode & 0o077 == 0


def test_other_candidates_are_measured_anew(tmp_path):
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0, 128: 0.5})
    TuneTable(tmp_path / "t.json", clock.measure).pick("k", (1,), CANDIDATES, clock.run)
    table = TuneTable(tmp_path / "t.json", clock.measure)
    assert table.pick("k", (1,), ({"BLOCK": 64}, {"BLOCK": 128}), clock.run) == {"BLOCK": 128}


def test_the_table_is_bounded(tmp_path):
    clock = Clock({16: 1.0, 32: 2.0, 64: 3.0})
    table = TuneTable(tmp_path / "t.json", clock.measure, limit=5)
    for size in range(20):
        table.pick("k", (size,), CANDIDATES, clock.run)
    assert len(table) == 5
    assert len(json.loads((tmp_path / "t.json").read_text())) == 5
    assert len(TuneTable(tmp_path / "t.json", clock.measure, limit=3)) == 3


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": "b"}', '{"k:1:16/32/64": 99}', "[" * 100_000, "null"])
def test_a_damaged_file_is_measured_anew(tmp_path, text):
    path = tmp_path / "t.json"
    path.write_text(text)
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0})
    assert TuneTable(path, clock.measure).pick("k", (1,), CANDIDATES, clock.run) == {"BLOCK": 32}


def test_candidates_beyond_the_hardware_are_passed_over(tmp_path):
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0})

    def run(config) -> None:
        if config["BLOCK"] == 32:
            raise triton.runtime.errors.OutOfResources(300_000, 232_448, "shared memory")
        clock.run(config)

    assert TuneTable(None, clock.measure).pick("k", (1,), CANDIDATES, run) == {"BLOCK": 64}


def test_a_directory_that_cannot_be_written_costs_nothing_but_a_warning(tmp_path):
    (tmp_path / "file").write_text("")
    clock = Clock({16: 3.0, 32: 1.0, 64: 2.0})
    assert TuneTable(tmp_path / "file" / "t.json", clock.measure).pick("k", (1,), CANDIDATES, clock.run)["BLOCK"] == 32


def test_nothing_is_measured_in_the_interpreter():
    calls = []
    if INTERPRETED:
        assert tune_table().pick("k", (1,), CANDIDATES, calls.append) == CANDIDATES[0]
        assert calls == []
