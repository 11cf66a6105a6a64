"""Runs a workload and reduces its answers to the figures of one JSON line."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
import orjson

from benchmarks.serving.client import Answer, Endpoint, ask
from benchmarks.serving.machine import cpu_seconds, resident_mb
from benchmarks.serving.prompts import ACTION_SCHEMA, ASSISTANT_TOOLS
from benchmarks.serving.workloads import Request, Workload, complete, warm_up


@dataclass(frozen=True)
class Target:
    """A server: its endpoint, the model name that it answers to, its kind, and its pid (0: not measured)."""

    endpoint: Endpoint
    model: str
    kind: str = "generic"
    pid: int = 0


@dataclass(frozen=True)
class Limits:
    """Seconds that a workload may take, and how many of its requests are sent (0: all)."""

    cap: float = 120.0
    requests: int = 0


async def warm(target: Target, seed: int) -> str | None:
    """Two requests that are not counted; the first error."""
    errors = []
    for request in warm_up(seed):
        answer = await ask(target.endpoint, complete(request.body, target.model, target.kind, True), request)
        errors.append(answer.error)
    return next(filter(None, errors), None)


async def run(workload: Workload, target: Target, seed: int, limits: Limits) -> dict[str, Any]:
    """The figures of one run. Answers that are not there after ``limits.cap`` seconds are cancelled and counted."""
    requests = workload.build(seed)
    requests = requests[: limits.requests or len(requests)]
    slots, answers = asyncio.Semaphore(workload.concurrency), []

    async def session(part: Sequence[Request]) -> None:
        for request in part:
            async with slots:
                body = complete(request.body, target.model, target.kind, workload.forced)
                answers.append(await ask(target.endpoint, body, request))
                if answers[-1].capped:
                    return

    before, start = cpu_seconds(target.pid) if target.pid else 0.0, time.perf_counter()
    parts = [requests[i : i + workload.turns] for i in range(0, len(requests), workload.turns)]
    tasks = [asyncio.create_task(session(part)) for part in parts]
    _, late = await asyncio.wait(tasks, timeout=limits.cap)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    wall = time.perf_counter() - start
    out = {"workload": workload.name, "seed": seed} | figures(answers, len(requests), wall)
    out |= judged(workload.name, answers, len(requests))
    if target.pid:
        used = cpu_seconds(target.pid) - before
        pss = round(resident_mb(target.pid))
        out |= {"cpu_s": round(used, 2), "cpu_util": round(used / wall, 3), "server_pss_mb": pss}
    return out


def figures(answers: Sequence[Answer], count: int, wall: float) -> dict[str, Any]:
    """Latencies and rates of all workloads; None where nothing was measured."""
    good = [answer for answer in answers if answer.error is None and not answer.capped]
    failed = [answer.error for answer in answers if answer.error is not None]
    # A server without usage is counted by its deltas, which are about one a token.
    counts = [answer.deltas if answer.output_tokens is None else answer.output_tokens for answer in good]
    firsts = [answer.first - answer.started for answer in good if answer.first is not None]
    paces = [
        (answer.last - answer.first) / (tokens - 1)
        for answer, tokens in zip(good, counts)
        if answer.first is not None and tokens > 1 and answer.last > answer.first
    ]
    output = sum(counts) + sum(answer.deltas for answer in answers if answer.capped)
    prompt = sum(answer.prompt_tokens or 0 for answer in good)
    cached = [answer.cached_tokens for answer in good if answer.cached_tokens is not None]
    return {
        "n": count,
        "ok": len(good),
        "errors": len(failed),
        "capped": count - len(good) - len(failed),
        "first_error": failed[0] if failed else None,
        "wall_s": round(wall, 3),
        "prompt_tok_mean": round(prompt / len(good), 1) if good else None,
        "out_tok_mean": round(sum(counts) / len(good), 1) if good else None,
        **times("ttft", firsts),
        "tpot_mean_ms": round(statistics.mean(paces) * 1e3, 2) if paces else None,
        **gaps([gap for answer in good for gap in answer.gaps]),
        "decode_tok_s_per_stream": round(1 / statistics.mean(paces), 2) if paces else None,
        "out_tok_s": round(output / wall, 2),
        "in_out_tok_s": round((output + prompt) / wall, 1),
        "prefill_tok_s": round(sum(a.prompt_tokens or 0 for a in good if a.first) / sum(firsts), 1) if firsts else None,
        "req_s": round(len(good) / wall, 3),
        "cached_tok": sum(cached) if cached else None,
        "counted_by": sorted({"server" if answer.output_tokens is not None else "deltas" for answer in good}),
        "finish": dict(Counter(answer.finish or "none" for answer in good)),
    }


def times(name: str, seconds: Sequence[float]) -> dict[str, float | None]:
    if not seconds:
        return dict.fromkeys((f"{name}_mean_s", f"{name}_p50_s", f"{name}_p90_s", f"{name}_max_s"))
    return {
        f"{name}_mean_s": round(statistics.mean(seconds), 4),
        f"{name}_p50_s": round(quantile(seconds, 0.5), 4),
        f"{name}_p90_s": round(quantile(seconds, 0.9), 4),
        f"{name}_max_s": round(max(seconds), 4),
    }


def gaps(seconds: Sequence[float]) -> dict[str, float | None]:
    """Inter-token latency: the seconds between two deltas of a stream, over all streams."""
    levels = {"itl_p50_ms": 0.5, "itl_p95_ms": 0.95, "itl_p99_ms": 0.99}
    return {key: round(quantile(seconds, level) * 1e3, 2) if seconds else None for key, level in levels.items()}


def quantile(values: Sequence[float], level: float) -> float:
    """The nearest-rank quantile of at least one value."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(level * (len(ordered) - 1)))]


def judged(name: str, answers: Sequence[Answer], count: int) -> dict[str, float]:
    """Shares of all requests of W5 and W6 whose answers are what was asked for."""
    good = [answer for answer in answers if answer.error is None and not answer.capped]
    if name == "W5":
        checks = [judge_calls(answer) for answer in good]
        names: tuple[str, ...] = ("tool_call_share", "args_json_share", "schema_valid_share", "right_tool_share")
    elif name == "W6":
        checks = [judge_json(answer) for answer in good]
        names = ("schema_valid_share", "right_tool_share")
    else:
        return {}
    return {key: round(sum(check[i] for check in checks) / count, 3) for i, key in enumerate(names)}


def judge_calls(answer: Answer) -> tuple[bool, ...]:
    """(called, arguments are JSON, calls fit their schemas, the first is the right tool)."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in ASSISTANT_TOOLS}
    calls = [answer.calls[index] for index in sorted(answer.calls)]
    if not calls:
        return (False,) * 4
    parsed = fits = True
    for call in calls:
        try:
            arguments = orjson.loads(call["arguments"])
        except ValueError:
            parsed = fits = False
            continue
        fits = fits and call["name"] in schemas and jsonschema_rs.is_valid(schemas[call["name"]], arguments)
    return True, parsed, fits, calls[0]["name"] == answer.expected


def judge_json(answer: Answer) -> tuple[bool, ...]:
    """(fits the schema, the action is right)."""
    try:
        value = orjson.loads(answer.text)
    except ValueError:
        return False, False
    right = isinstance(value, dict) and value.get("action") == answer.expected
    return jsonschema_rs.is_valid(ACTION_SCHEMA, value), right
