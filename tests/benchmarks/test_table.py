"""Medians, the best peer in each direction, and what a reader must be warned of."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.serving.roofline import roofline
from benchmarks.serving.table import METRICS, OURS, Figures, grouped, ratio_table
from scripts.benchmarks_table import BEGIN, DOC, END, read, updated

COMMON: dict[str, Any] = {
    "run": "2026-01-01T00:00:00Z",
    "commit": "abc",
    "label": "",
    "model": "m.gguf",
    "model_work": {"bytes_per_token": 500_000_000, "prefill_ops_per_token": 1_000_000_000},
    "machine": {
        "cpu": "c",
        "cores": 2,
        "flags": ["avx512f"],
        "load_before": 0.1,
        "read_gb_s": 50.0,
        "int8_gop_s": 1000.0,
    },
    "settings": {"cap_s": 120.0, "max_requests": 0},
}


def row(workload: str, **values: Any) -> dict[str, Any]:
    return {"workload": workload, "capped": 0, "errors": 0, **values}


def line(table: str, title: str) -> list[str]:
    """The cells of the line that starts with ``title``."""
    found = next(text for text in table.splitlines() if text.startswith(f"| {title}"))
    return [cell.strip() for cell in found.strip("|").split("|")][1:]


@pytest.fixture
def figures() -> Figures:
    out = Figures()
    for server, decode, wall in ((OURS, (90, 80, 10), (2, 3, 9)), ("a", (40, 40, 40), (4,)), ("b", (20,), (12,))):
        for value in decode:
            out.add(server, row("W1", decode_tok_s_per_stream=value))
        for value in wall:
            out.add(server, row("W3", wall_s=value))
    return out


def test_ratios_are_of_medians_to_the_best_peer_of_each_line(figures: Figures) -> None:
    table = ratio_table(COMMON, figures)
    assert line(table, "W1") == ["80", "40", "20", "2.00x a"]
    assert line(table, "W3") == ["3", "4", "12", "0.75x a"]
    assert "W2" not in table


def test_what_was_cut_off_or_failed_is_marked(figures: Figures) -> None:
    figures.add("b", row("W3", wall_s=120, capped=3))
    figures.add("a", row("W1", decode_tok_s_per_stream=40, errors=1))
    table = ratio_table(COMMON, figures)
    assert line(table, "W3")[2].endswith("*")
    assert line(table, "W1")[1] == "40*"


def test_shares_of_the_machines_limits(figures: Figures) -> None:
    figures.add(OURS, row("W2", prefill_tok_s=700))
    table = ratio_table(COMMON, figures)
    assert line(table, "W1 share")[0] == "80"
    assert line(table, "W2 share")[0] == "70"


def test_a_limit_taken_beside_a_workload_counts_before_the_runs(figures: Figures) -> None:
    for rate, limit in ((700, 2000.0), (400, 500.0), (500, 1250.0)):
        figures.add(OURS, row("W2", prefill_tok_s=rate, int8_gop_s=limit, read_gb_s=1.0))
    assert line(ratio_table(COMMON, figures), "W2 share")[0] == "40"


def test_a_run_of_ours_alone_has_figures_and_no_ratio() -> None:
    figures = Figures()
    figures.add(OURS, row("W4", out_tok_s=123.4))
    assert line(ratio_table(COMMON, figures), "W4") == ["123", ""]


def test_starts_are_told_apart() -> None:
    figures = Figures()
    for start, seconds in (("cold", 5.0), ("warm", 1.0)):
        figures.add(OURS, row("start", start=start, ready_s=seconds, loaded_pss_mb=600))
    table = ratio_table(COMMON, figures)
    assert line(table, "first start")[0] == "5"
    assert line(table, "later starts")[0] == "1"


def test_lines_of_a_file_are_runs_again(figures: Figures) -> None:
    lines = [json.loads(json.dumps(COMMON | {"server": server} | values)) for server, values in figures.rows()]
    ((common, again),) = grouped(lines)
    assert common == COMMON
    assert ratio_table(common, again) == ratio_table(COMMON, figures)


def test_the_document_gets_the_last_full_run_of_each_model_and_instruction_set() -> None:
    def lines(run: str, model: str, value: int, requests: int = 0, flag: str = "avx512f") -> list[dict[str, Any]]:
        common = COMMON | {"run": run, "model": model, "settings": {"cap_s": 1.0, "max_requests": requests}}
        common["machine"] = COMMON["machine"] | {"flags": [flag]}
        w1 = common | {"server": OURS} | row("W1", decode_tok_s_per_stream=value)
        return [w1, common | {"server": OURS} | row("W4", out_tok_s=1.0)]

    all_lines = lines("1", "x", 11) + lines("2", "x", 22) + lines("3", "x", 33, requests=1) + lines("4", "y", 44)
    all_lines += lines("5", "x", 55, flag="avx2") + lines("6", "x", 66)[:1]  # W1 alone is no comparison
    text = updated(f"before\n{BEGIN}\nold\n{END}\nafter", all_lines)
    assert [line for line in text.splitlines() if line.startswith("| W1 one")] == [
        "| W1 one stream, decode tok/s | 22 |  |",
        "| W1 one stream, decode tok/s | 55 |  |",
        "| W1 one stream, decode tok/s | 44 |  |",
    ]
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after")


def test_the_documents_table_comes_from_the_results_file() -> None:
    """Written by the script from runs that the file holds; newer runs may follow them."""
    text, lines = DOC.read_text("utf-8"), read()
    ends = [i for i in range(len(lines) + 1) if i == len(lines) or i == 0 or lines[i]["run"] != lines[i - 1]["run"]]
    assert any(updated(text, lines[:end]) == text for end in ends)


def test_every_workload_has_one_line() -> None:
    assert [metric.workload for metric in METRICS if metric.workload.startswith("W")] == [f"W{i}" for i in range(1, 8)]


def test_the_roofline_places_a_point_for_each_measured_rate(figures: Figures) -> None:
    figures.add("a", row("W2", prefill_tok_s=1000))
    drawn = ElementTree.fromstring(roofline(COMMON, figures))
    titles = [title.text for title in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert titles == [f"{OURS} W1: 80 GOP/s", "a W1: 40 GOP/s", "a W2: 1,000 GOP/s", "b W1: 20 GOP/s"]
    assert roofline(COMMON | {"model_work": {}}, figures) == ""
