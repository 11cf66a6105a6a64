"""Model outputs that might have been: calls of every format, broken in the ways in which models and limits break them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import toolcall
from tests.toolcall.render_calls import RENDERERS, VARIANTS, Call

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "mode": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                    "lines": {"type": "array", "items": {"type": "integer"}},
                    "options": {"type": "object"},
                    "count": {"type": "integer"},
                    "ratio": {"type": "number"},
                    "force": {"type": "boolean"},
                },
                "required": ["path"],
            },
        },
    },
    {"type": "function", "function": {"name": "fs.now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "get-it", "parameters": {"properties": {"zip": {"type": "string"}}}}},
]
PROSE = (
    "Let me see.\n",
    "Done. ",
    "if a < b and c > d: x = {1: [2]}",
    "```\ncode\n```",
    " \n\n",
    "[1] {2} `x` ",
    "日本 🚀 é",
)
STRINGS = (
    "",
    "Oslo",
    "a\nb\n",
    '\\"',
    "x < y </b> & [z] {w}",
    "日本 🚀",
    "null",
    "12",
    "\ttab\\n",
    "'q' \"r\"",
    "}]}",
    "\n",
)


def random_arguments(rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {
        "path": rng.choice(STRINGS),
        "content": "".join(rng.choice(STRINGS) for _ in range(rng.randint(0, 3))),
        "lines": [rng.randint(-3, 99) for _ in range(rng.randint(0, 3))],
        "options": {
            rng.choice("abc"): rng.choice([1, None, True, "x}", [{"y": []}], {}]) for _ in range(rng.randint(0, 2))
        },
        "count": rng.choice([0, -1, 12, 10**12]),
        "ratio": rng.choice([0.5, -2, 1e-7, 3.0]),
        "force": rng.random() < 0.5,
    }
    return {k: v for k, v in values.items() if rng.random() < 0.4}


def random_calls(rng: random.Random) -> list[Call]:
    def one() -> Call:
        roll = rng.random()
        if roll < 0.2:
            return "fs.now", {}
        return ("get-it", {"zip": rng.choice(STRINGS)}) if roll < 0.35 else ("write_file", random_arguments(rng))

    return [one() for _ in range(rng.randint(1, 3))]


def markers_of(name: str) -> list[str]:
    fmt = toolcall.get_format(name)
    found = [w for b in (*fmt.blocks, *fmt.bare) for w in (b.opener, *b.closers, *b.inner)]
    found += [
        *fmt.end_tokens,
        *fmt.hidden,
        "<think>",
        "</think>",
        "```json\n",
        "<tool_call>",
        "</tool_call>",
        "<function=",
    ]
    found += [
        '{"name": "write_file", "arguments": {"path": "',
        '"}}',
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        "'",
        'f"',
        'f"""',
        "{x}",
        "\n",
        ",",
        "<",
        "</",
    ]
    return [w for w in found if w]


def mutate(text: str, rng: random.Random, words: Sequence[str]) -> str:
    at = rng.randint(0, len(text))
    to = min(len(text), at + rng.randint(1, 12))
    return rng.choice(
        (
            text[:at] + text[to:],
            text[:at] + rng.choice(words) + text[at:],
            text[:at] + text[at:to] + text[at:],
            text[:at],
            text[:at] + rng.choice(PROSE) + text[to:],
            text[to:] + text[:at],
            text.replace("write_file", "read_file", 1),
        )
    )


def random_output(name: str, rng: random.Random) -> str:
    """An answer in this format, whole or broken."""
    render = rng.choice([r[name] for r in (RENDERERS, VARIANTS) if name in r])
    parts = [rng.choice(PROSE)] if rng.random() < 0.3 else []
    parts.append(render(random_calls(rng)))
    if rng.random() < 0.3:
        parts += [rng.choice(PROSE), rng.choice([render(random_calls(rng)), json.dumps({"name": "fs.now"})])]
    if rng.random() < 0.3:
        parts.insert(0, rng.choice(("<think>\nhm</think>\n", "<think>so ", "</think>")))
    text = "".join(parts)
    words = markers_of(name)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 5))):
        text = mutate(text, rng, words)
    return text


def partitions(text: str, rng: random.Random, count: int) -> Iterator[list[str]]:
    """Characters, then random cuts."""
    yield list(text)
    for _ in range(count):
        cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.choice((1, 1, 2, 5, len(text) // 4 + 1))))
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
