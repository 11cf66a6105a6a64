"""Ours and every installed peer, one after another on this machine: ``make bench``.

    python -m benchmarks.compare [--model M] [--reps 3] [--workloads W1,W2,W3,W4,W5,W7] [--only callgate,llama.cpp]

Each repetition starts one server after the other, alone, runs all workloads on it and stops it; repetition i uses seed
i + 1, so no prompt comes twice. Then the medians and their ratios to the best peer are printed, and one JSON line
per server and workload is appended to --out. benchmarks/peers.py says how a peer is found. Figures are worth something
only on a machine that does nothing else: the load before the start is kept with them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.peers import Running, Server, ServerFailed, installed, ours, started
from benchmarks.serving.__main__ import names
from benchmarks.serving.machine import commit, limits, machine, model_work
from benchmarks.serving.measure import Limits, run, warm
from benchmarks.serving.table import OURS, Figures, ratio_table
from benchmarks.serving.workloads import WORKLOADS
from engine.model_store import DEFAULT_MODEL, resolve

LIMITED = {(OURS, "W1"), (OURS, "W2")}
"""Server and workload of which the share of a machine limit is told: it is taken right before and after."""
RESULTS = Path(__file__).parent / "results/serving.jsonl"


async def measure(running: Running, args: argparse.Namespace, seed: int) -> list[dict[str, Any]]:
    """All workloads on a running server."""
    bounds = Limits(args.cap, args.max_requests)
    if error := await warm(running.target, seed):
        print(f"{running.server.name}: warm-up failed: {error}", file=sys.stderr)
    rows = []
    for name in args.workloads:
        before = limits() if (running.server.name, name) in LIMITED else {}
        rows.append(await run(WORKLOADS[name], running.target, seed, bounds))
        if before:
            rows[-1] |= mean(before, limits())
        print(f"{running.server.name} seed {seed} {orjson.dumps(rows[-1]).decode()}", file=sys.stderr, flush=True)
    return rows


def mean(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    return {key: round((value + after[key]) / 2, 1) for key, value in before.items()}


def taken(figures: Figures) -> dict[str, list[float]]:
    """The machine's limits that were taken beside workloads."""
    rows = [row for _, row in figures.rows() if "read_gb_s" in row]
    return {key: [row[key] for row in rows] for key in ("read_gb_s", "int8_gop_s") if rows}


@contextlib.contextmanager
def never_seen(model: Path) -> Iterator[Path]:
    """The same model file in a directory of its own, where no server has left anything about it."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=model.parent) as folder:
        path = Path(folder) / model.name
        os.link(model, path)
        yield path


def start_row(running: Running, start: str) -> dict[str, Any]:
    return {
        "workload": "start",
        "start": start,
        "ready_s": round(running.ready_s, 2),
        "answered_s": round(running.answered_s, 2),
        "loaded_pss_mb": round(running.loaded_mb),
    }


def cold_starts(args: argparse.Namespace, model: Path, figures: Figures) -> None:
    """Our first start with a model: nothing is repacked yet, the file itself is in the page cache."""
    if model.suffix != ".gguf" or (args.only and OURS not in args.only):
        return
    try:
        for _ in range(args.reps):
            with never_seen(model) as path, started(ours(path, args.threads, tuple(args.server_args))) as running:
                figures.add(OURS, start_row(running, "cold"))
    except (OSError, ServerFailed) as error:
        print(f"first starts are not measured: {error}", file=sys.stderr)


def one_round(server: Server, args: argparse.Namespace, rep: int, figures: Figures) -> None:
    """Start, measure, stop. A server that fails is reported and left out of this repetition."""
    print(f"{server.name}: starting", file=sys.stderr, flush=True)
    try:
        with started(server, args.start_timeout) as running:
            figures.add(server.name, start_row(running, "warm"))
            for row in uvloop.run(measure(running, args, args.seed + rep)):
                figures.add(server.name, row | {"rep": rep})
    except ServerFailed as error:
        print(f"{server.name}: {error}", file=sys.stderr, flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--workloads", type=names, default=["W1", "W2", "W3", "W4", "W5", "W7"])
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--only", type=lambda text: text.split(","), help="servers by name, comma separated")
    parser.add_argument("--cap", type=float, default=120.0, help="seconds a workload; the rest is cancelled")
    parser.add_argument("--max-requests", type=int, default=0, help="only the first N requests of each workload")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start-timeout", type=float, default=600.0)
    parser.add_argument("--no-cold", action="store_true", help="do not measure first starts")
    parser.add_argument("--label", default="")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("server_args", nargs="*", help="after --: further arguments of our server")
    return parser.parse_args()


def shown(command: Sequence[str]) -> str:
    """A command line without the directories of this machine."""
    return " ".join(Path(part).name if part.startswith("/") else part for part in command)


def write(path: Path, common: dict[str, Any], figures: Figures) -> None:
    """Appends one line per server, workload and repetition."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        for server, row in figures.rows():
            file.write(orjson.dumps(common | {"server": server} | row) + b"\n")


def main() -> None:
    args = parse()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Servers are stopped and figures kept then, too.
    model = resolve(args.model).path
    servers = [ours(model, args.threads, tuple(args.server_args)), *installed(model, args.threads)]
    servers = [server for server in servers if not args.only or server.name in args.only]
    if missing := set(args.only or ()) - {server.name for server in servers}:
        sys.exit(f"not installed: {', '.join(sorted(missing))} (benchmarks/peers.py says how a peer is found)")
    host = machine()
    host |= limits()
    settings = {"threads": args.threads, "cap_s": args.cap, "max_requests": args.max_requests}
    settings["commands"] = {server.name: shown(server.command) for server in servers}
    common = {"run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "commit": commit(), "label": args.label}
    common |= {"model": model.name, "model_work": model_work(model), "machine": host, "settings": settings}
    figures = Figures()
    try:
        if not args.no_cold:
            cold_starts(args, model, figures)
        for rep in range(args.reps):
            for server in servers:
                one_round(server, args, rep, figures)
    except KeyboardInterrupt:
        print("interrupted: what was measured so far follows", file=sys.stderr)
    host |= {key: statistics.median(values) for key, values in taken(figures).items()}
    write(args.out, common, figures)
    print(ratio_table(common, figures))


if __name__ == "__main__":
    main()
