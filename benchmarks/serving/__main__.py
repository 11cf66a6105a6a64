"""Measures a running server and writes one JSON line per workload.

    python -m benchmarks.serving --base-url http://127.0.0.1:8000/v1 --model qwen2.5-coder-0.5b --pid PID --out x.jsonl

Workloads are described in benchmarks/serving/workloads.py. With --pid the lines also hold CPU time and resident memory
of that process and its children.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import uvloop

from benchmarks.serving.client import Endpoint
from benchmarks.serving.machine import commit, limits, machine
from benchmarks.serving.measure import Limits, Target, run, warm
from benchmarks.serving.workloads import KINDS, WORKLOADS

COLUMNS = {
    "workload": "",
    "ok": "ok",
    "errors": "err",
    "capped": "cap",
    "wall_s": "wall s",
    "prompt_tok_mean": "prompt",
    "out_tok_mean": "output",
    "ttft_p50_s": "ttft p50",
    "ttft_p90_s": "ttft p90",
    "tpot_mean_ms": "tpot ms",
    "itl_p95_ms": "itl p95",
    "decode_tok_s_per_stream": "tok/s/stream",
    "out_tok_s": "out tok/s",
    "prefill_tok_s": "prefill tok/s",
    "cached_tok": "cached",
    "schema_valid_share": "valid",
    "right_tool_share": "right",
    "cpu_util": "cpu",
    "server_pss_mb": "PSS MB",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Rows as aligned text."""
    cells = [list(COLUMNS.values())]
    cells += [["" if row.get(key) is None else str(row[key]) for key in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in cells)


def names(text: str) -> list[str]:
    """``W1,W3`` as a list; argparse's error when one is unknown."""
    out = [name.strip().upper() for name in text.split(",")]
    if unknown := [name for name in out if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"no workload {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    return out


async def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    target = Target(Endpoint(args.base_url.rstrip("/"), args.api_key), args.model, args.kind, args.pid)
    bounds = Limits(args.cap, args.max_requests)
    if not args.no_warmup and (error := await warm(target, args.seed)):
        print(f"warm-up failed: {error}", file=sys.stderr)
    rows = []
    for rep in range(args.reps):
        for name in args.workloads:
            row = await run(WORKLOADS[name], target, args.seed + rep, bounds)
            rows.append(row | {"rep": rep})
            print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--kind", default="generic", choices=KINDS, help="which fields force the output length")
    parser.add_argument("--workloads", type=names, default=["W1", "W2", "W3", "W4", "W5", "W7"])
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cap", type=float, default=120.0, help="seconds a workload; the rest is cancelled")
    parser.add_argument("--max-requests", type=int, default=0, help="only the first N requests of each workload")
    parser.add_argument("--pid", type=int, default=0, help="the server's process")
    parser.add_argument("--label", default="")
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--no-limits", action="store_true", help="do not measure the machine's limits before")
    parser.add_argument("--out", type=Path, help="append one JSON line per workload")
    args = parser.parse_args()
    common = {"commit": commit(), "time": int(time.time()), "label": args.label, "model": args.model, "kind": args.kind}
    common |= {"machine": machine() | ({} if args.no_limits else limits())}
    rows = uvloop.run(measure(args))
    print(table(rows))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with args.out.open("ab") as file:
            for row in rows:
                file.write(orjson.dumps(common | row) + b"\n")


if __name__ == "__main__":
    main()
