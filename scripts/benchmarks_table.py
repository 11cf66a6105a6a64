"""Writes the last comparison of each model and instruction set into docs/benchmarks.md, each with a roofline picture.

python -m scripts.benchmarks_table
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving.roofline import roofline
from benchmarks.serving.table import Figures, grouped, ratio_table

ROOT = Path(__file__).parents[1]
RESULTS, DOC = ROOT / "benchmarks/results/serving.jsonl", ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- table: written by scripts/benchmarks_table.py -->", "<!-- end of table -->"


def last_runs(lines: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, Any], Figures]]:
    """The last full run (no --max-requests, several workloads) of each model on each instruction set, by name."""
    full = [run for run in grouped(lines) if not run[0]["settings"].get("max_requests") and len(workloads(run[1])) > 1]
    last = {(run[0]["model"], instruction_set(run[0])): run for run in full}
    return [last[key] for key in sorted(last)]


def workloads(figures: Figures) -> set[str]:
    return {row["workload"] for rows in figures.by_server.values() for row in rows} - {"start"}


def instruction_set(common: Mapping[str, Any]) -> str:
    return "" if "avx512f" in common["machine"]["flags"] else "-avx2"


def picture_name(common: Mapping[str, Any]) -> str:
    return f"roofline-{Path(common['model']).stem}{instruction_set(common)}.svg"


def tables(lines: Iterable[Mapping[str, Any]]) -> str:
    """A table for each of them, and the link to its picture where there is one."""
    parts = []
    for common, figures in last_runs(lines):
        parts.append(ratio_table(common, figures))
        if roofline(common, figures):
            parts.append(f"![Roofline of {common['model']}]({picture_name(common)})")
    return "\n\n".join(parts) or "No comparison has been recorded yet."


def updated(text: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """The document with the tables of ``lines``."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables(lines)}\n\n{END}{rest.partition(END)[2]}"


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def main() -> None:
    lines = read()
    DOC.write_text(updated(DOC.read_text("utf-8"), lines), "utf-8")
    for common, figures in last_runs(lines):
        if picture := roofline(common, figures):
            (DOC.parent / picture_name(common)).write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
