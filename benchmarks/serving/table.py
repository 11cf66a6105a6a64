"""Medians over repetitions, their ratio to the best peer, and the table of both in Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OURS = "callgate"


@dataclass(frozen=True)
class Metric:
    """A line of the table: the figure of a workload that is compared. ``start`` narrows rows of starts."""

    title: str
    workload: str
    key: str
    higher_is_better: bool
    start: str = ""


METRICS = (
    Metric("W1 one stream, decode tok/s", "W1", "decode_tok_s_per_stream", True),
    Metric("W2 prefill of 1,500 unique tokens, tok/s", "W2", "prefill_tok_s", True),
    Metric("W3 shared prefix, wall s", "W3", "wall_s", False),
    Metric("W4 batch of 16, output tok/s", "W4", "out_tok_s", True),
    Metric("W5 forced tool calls, wall s", "W5", "wall_s", False),
    Metric("W6 strict JSON, wall s", "W6", "wall_s", False),
    Metric("W7 agents of 8 turns, wall s", "W7", "wall_s", False),
    Metric("first start with a model, ready after s", "start", "ready_s", False, "cold"),
    Metric("later starts, ready after s", "start", "ready_s", False, "warm"),
    Metric("memory after loading, PSS MB", "start", "loaded_pss_mb", False, "warm"),
    Metric("memory, most of any workload, PSS MB", "", "server_pss_mb", False),
)


@dataclass
class Figures:
    """The rows of one run, by server in order of appearance."""

    by_server: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, server: str, row: dict[str, Any]) -> None:
        self.by_server.setdefault(server, []).append(row)

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for server, rows in self.by_server.items():
            for row in rows:
                yield server, row

    def matching(self, server: str, metric: Metric) -> list[dict[str, Any]]:
        return [
            row
            for row in self.by_server.get(server, ())
            if (not metric.workload or row["workload"] == metric.workload)
            and (not metric.start or row.get("start") == metric.start)
            and row.get(metric.key) is not None
        ]

    def value(self, server: str, metric: Metric) -> float | None:
        """The median over repetitions, the maximum where the metric spans workloads; None when not measured."""
        values = [float(row[metric.key]) for row in self.matching(server, metric)]
        if not values:
            return None
        return statistics.median(values) if metric.workload else max(values)

    def is_complete(self, server: str, metric: Metric) -> bool:
        """False when a request failed or was cut off at the cap: the figure is then better than the truth."""
        return all(not row.get("capped") and not row.get("errors") for row in self.matching(server, metric))


def grouped(lines: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, Any], Figures]]:
    """Lines of a results file as runs, oldest first: what their lines have in common, and the figures."""
    runs: dict[tuple[str, str], tuple[dict[str, Any], Figures]] = {}
    for line in lines:
        common = {key: line[key] for key in ("run", "commit", "label", "model", "model_work", "machine", "settings")}
        _, figures = runs.setdefault((line["run"], line["model"]), (common, Figures()))
        figures.add(line["server"], dict(line))
    return list(runs.values())


def number(value: float | None) -> str:
    """Three significant digits, and no less than the integer."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def best_peer(figures: Figures, metric: Metric, peers: Sequence[str]) -> tuple[str, float] | None:
    """The peer with the best figure; ties go to the first."""
    values = [(name, value) for name in peers if (value := figures.value(name, metric)) is not None]
    if not values:
        return None
    return (max if metric.higher_is_better else min)(values, key=lambda pair: pair[1])


def ratio(figures: Figures, metric: Metric, peers: Sequence[str]) -> str:
    """Ours divided by the best peer's."""
    best, mine = best_peer(figures, metric, peers), figures.value(OURS, metric)
    return f"{mine / best[1]:.2f}x {best[0]}" if best and best[1] and mine is not None else ""


def ratio_table(common: Mapping[str, Any], figures: Figures) -> str:
    """The run as Markdown. ``*``: a request failed or was cut off. Shares of limits where they were measured."""
    servers = list(figures.by_server)
    peers = [name for name in servers if name != OURS]
    lines = [heading(common), "", "| | " + " | ".join(servers) + " | ours / best peer |"]
    lines.append("|---|" + "---|" * (len(servers) + 1))
    for metric in METRICS:
        cells = []
        for name in servers:
            mark = "" if figures.is_complete(name, metric) else "*"
            cells.append(number(figures.value(name, metric)) + mark)
        if any(cells):
            lines.append(f"| {metric.title} | " + " | ".join(cells) + f" | {ratio(figures, metric, peers)} |")
    for title, values in shares(common, figures):
        lines.append(f"| {title} | " + " | ".join(values) + " | |")
    return "\n".join(lines)


def heading(common: Mapping[str, Any]) -> str:
    host = common["machine"]
    reads = f", reads {host['read_gb_s']} GB/s" if "read_gb_s" in host else ""
    dots = f", int8 {host['int8_gop_s']:,.0f} GOP/s" if "int8_gop_s" in host else ""
    label = f" {common['label']}." if common.get("label") else ""
    level = "" if "avx512f" in host["flags"] else ", no AVX-512"
    return (
        f"{common['model']}, commit {common['commit']}, {common['run']}, {host['cpu']}{level}, "
        f"{host['cores']} cores{reads}{dots}, "
        f"load before the start {host['load_before']}.{label} `*`: a request failed or was cut off at "
        f"{common['settings']['cap_s']:.0f} s."
    )


def shares(common: Mapping[str, Any], figures: Figures) -> Iterator[tuple[str, list[str]]]:
    """(title, a cell per server): answers that were right, and for ours how near the machine's limits it is."""
    servers = list(figures.by_server)
    for title, workload, key in (
        ("W5 calls that fit their schema, %", "W5", "schema_valid_share"),
        ("W5 right tool, %", "W5", "right_tool_share"),
        ("W6 answers that fit the schema, %", "W6", "schema_valid_share"),
    ):
        values = [figures.value(name, Metric(title, workload, key, True)) for name in servers]
        if any(value is not None for value in values):
            yield title, [number(None if value is None else 100 * value) for value in values]
    for title, used in limit_shares(common, figures).items():
        yield title, [number(100 * used) if name == OURS else "" for name in servers]


def limit_shares(common: Mapping[str, Any], figures: Figures) -> dict[str, float]:
    """What our W1 reads and our W2 multiplies, divided by what plain loops sustained next to it (or, in older results,
    at best and before the run): the median over repetitions.

    Decode reads every weight once a token, in the file's bytes; prefill multiplies every linear weight once a token.
    Attention and the KV cache are left out, so both are a little lower than the truth.
    """
    work, out = common.get("model_work") or {}, {}
    for title, metric, amount, limit in (
        ("W1 share of the read bandwidth, %", METRICS[0], "bytes_per_token", "read_gb_s"),
        ("W2 share of the int8 peak, %", METRICS[1], "prefill_ops_per_token", "int8_gop_s"),
    ):
        bounded = [(row, row.get(limit, common["machine"].get(limit))) for row in figures.matching(OURS, metric)]
        used = [row[metric.key] * work[amount] / 1e9 / bound for row, bound in bounded if work and bound]
        if used:
            out[title] = statistics.median(used)
    return out
