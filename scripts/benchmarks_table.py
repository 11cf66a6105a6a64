"""Writes the last comparison of each model into docs/benchmarks.md: ``python -m scripts.benchmarks_table``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.serving.table import grouped, ratio_table

ROOT = Path(__file__).parents[1]
RESULTS, DOC = ROOT / "benchmarks/results/serving.jsonl", ROOT / "docs/benchmarks.md"
BEGIN, END = "<!-- table: written by scripts/benchmarks_table.py -->", "<!-- end of table -->"


def tables(lines: Iterable[Mapping[str, Any]]) -> str:
    """The last full run (no --max-requests) of each model, by name."""
    last: dict[str, str] = {}
    for common, figures in grouped(lines):
        if not common["settings"].get("max_requests"):
            last[common["model"]] = ratio_table(common, figures)
    return "\n\n".join(last[model] for model in sorted(last)) or "No comparison has been recorded yet."


def updated(text: str, lines: Iterable[Mapping[str, Any]]) -> str:
    """The document with the tables of ``lines``."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{tables(lines)}\n\n{END}{rest.partition(END)[2]}"


def read(path: Path = RESULTS) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


if __name__ == "__main__":
    DOC.write_text(updated(DOC.read_text("utf-8"), read()), "utf-8")
