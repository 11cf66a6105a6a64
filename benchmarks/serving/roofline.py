"""A roofline picture of one run as SVG: how near decode and prefill come to what the machine reads and multiplies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from benchmarks.serving.table import Figures, Metric

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 70, 150, 20, 50
COLOURS = ("#c0392b", "#2c6fbb", "#2e8b57", "#8e5bb5", "#b7791f", "#555555")
SHAPES = (
    ("W1", "decode_tok_s_per_stream", 1, 1),
    ("W4", "decode_tok_s_per_stream", 16, 16),
    ("W2", "prefill_tok_s", 1, 1500),
)
"""Workload, its rate, streams that have this rate at once, and the tokens for which the weights are read once."""


def points(common: Mapping[str, Any], figures: Figures) -> Iterator[tuple[str, str, float, float]]:
    """(server, workload, operations per byte of weights, operations per second) of what was measured."""
    work = common["model_work"]
    for server in figures.by_server:
        for workload, key, streams, rows in SHAPES:
            rate = figures.value(server, Metric("", workload, key, True))
            if rate:
                operations = work["prefill_ops_per_token"]
                yield server, workload, operations * rows / work["bytes_per_token"], operations * rate * streams


def roofline(common: Mapping[str, Any], figures: Figures) -> str:
    """The picture, or nothing where the machine's limits or the model's work are not known."""
    host = common["machine"]
    if not common.get("model_work") or not host.get("read_gb_s") or not host.get("int8_gop_s"):
        return ""
    read, peak = host["read_gb_s"] * 1e9, host["int8_gop_s"] * 1e9
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">']
    lines += [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', *axes()]
    roof = [(1.0, read), (peak / read, peak), (10_000.0, peak)]
    path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in roof)
    lines.append(f'<polyline points="{path}" fill="none" stroke="#333" stroke-width="2"/>')
    lines.append(text(x(1.2), y(read * 1.2) - 36, f"{host['read_gb_s']} GB/s"))
    lines.append(text(x(1000), y(peak) - 6, f"int8 {host['int8_gop_s']:,.0f} GOP/s"))
    for i, server in enumerate(figures.by_server):
        lines.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{TOP + 20 * i + 6}" r="5" fill="{colour(i)}"/>')
        lines.append(text(WIDTH - RIGHT + 32, TOP + 20 * i + 10, server))
    order = list(figures.by_server)
    for server, workload, intensity, speed in points(common, figures):
        place = f'cx="{x(intensity):.1f}" cy="{y(speed):.1f}"'
        title = f"<title>{escape(server)} {workload}: {speed / 1e9:,.0f} GOP/s</title>"
        lines.append(f'<circle {place} r="5" fill="{colour(order.index(server))}">{title}</circle>')
    return "\n".join([*lines, "</svg>", ""])


def axes() -> Iterator[str]:
    """Grid and labels: operations per byte from 1 to 10,000, operations per second from 1 to 10,000 GOP/s."""
    for power in range(5):
        across, up = x(10.0**power), y(10.0 ** (9 + power))
        yield f'<line x1="{across:.1f}" y1="{TOP}" x2="{across:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>'
        yield f'<line x1="{LEFT}" y1="{up:.1f}" x2="{WIDTH - RIGHT}" y2="{up:.1f}" stroke="#ddd"/>'
        yield text(across - 8, HEIGHT - BOTTOM + 16, f"{10**power:,}")
        yield text(LEFT - 45, up + 4, f"{10**power:,}")
    yield text(LEFT + 60, HEIGHT - 12, "int8 operations per byte of weights read (from left: W1, W4, W2)")
    yield text(6, TOP - 6, "GOP/s")


def text(left: float, baseline: float, words: str) -> str:
    return f'<text x="{left:.1f}" y="{baseline:.1f}" font-size="12" fill="#333">{escape(words)}</text>'


def colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def x(intensity: float) -> float:
    return LEFT + math.log10(intensity) / 4 * (WIDTH - LEFT - RIGHT)


def y(speed: float) -> float:
    return HEIGHT - BOTTOM - (math.log10(max(speed, 1e9)) - 9) / 4 * (HEIGHT - TOP - BOTTOM)
