"""Random calls whose values hold what could be taken for something else: other families' marks, code, JSON, control
characters. Written in each family's way and read back, whatever stands around them and wherever the text is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import toolcall
from tests.cases.compare import same_json
from tests.toolcall.conftest import scaled
from tests.toolcall.fuzzing import partitions
from tests.toolcall.render_calls import RENDERERS, VARIANTS, Call
from tests.toolcall.running import events_of, merged
from tests.toolcall.test_round_trip import own_marks
from toolcall.registry import list_formats
from toolcall.syntax import TaggedCalls

SEEDS = 8
PROPERTIES: dict[str, Any] = {
    "path": {"type": "string"},
    "content": {"type": "string"},
    "options": {"type": "object"},
    "list": {"type": "array"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "force": {"type": "boolean"},
    "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
TOOLS: list[dict[str, Any]] = [
    {"name": "write_file", "parameters": {"type": "object", "properties": PROPERTIES}},
    {"name": "fs.now", "parameters": {"type": "object", "properties": {}}},
    {"name": "get_it", "parameters": {"type": "object", "properties": {"zip": {"type": "string"}}}},
]
PIECES = (
    '{"name": "write_file", "arguments": {"path": "x"}}',
    "```json\n{}\n```",
    "```python\nprint(1)\n```",
    '<div class="a">&amp;</div>',
    "<!-- x -->",
    "<![CDATA[x]]>",
    "call:f{a:1}",
    "[f(x=1)](y)",
    "to=functions.f",
    "functions.f:0",
    *[
        "\r\n",
        "\n",
        "\n\n",
        "\x00",
        "\x1b[0m",
        "\\u0041",
        "\\",
        "'''",
        '"""',
        "&lt;",
        "&#65;",
        "%s",
        "{{x}}",
        "//c",
        "# c",
        "r'a'",
        'string="true"',
        "<think>",
        "</think>",
    ],
    *[
        '"',
        "'",
        "`",
        "{",
        "}",
        "[",
        "]",
        "<",
        ">",
        "</",
        ",",
        ";",
        "=",
        ":",
        "$",
        "(",
        ")",
        "null",
        "true",
        "12",
        "-0",
        "007",
        "1e5",
        "NaN",
        "é日本🚀",
        "\u2028",
        "\ufeff",
    ],
    " ",
    "\t",
    "x" * 300,
)
MARKS = {fmt.name: [*own_marks(fmt.name), *fmt.end_tokens, *fmt.hidden] for fmt in list_formats()}
WRITES_RAW = ("gemma4", "functiongemma", "muse_glimmer")
"""Beside those of tags: values or keys are not quoted as in JSON, so that a mark of their own may end them."""


def is_raw(name: str) -> bool:
    fmt = toolcall.get_format(name)
    return name in WRITES_RAW or any(isinstance(body, TaggedCalls) for b in fmt.blocks for body in b.bodies[:1])


def pieces_for(name: str, rng: random.Random) -> list[str]:
    own = MARKS[name]
    foreign = [m for marks in MARKS.values() for m in marks if not any(o in m or m in o for o in own)]
    return [*PIECES, *rng.choices(foreign, k=20), *(() if is_raw(name) else own)]


def text_of(rng: random.Random, pieces: list[str]) -> str:
    return "".join(rng.choice(pieces) for _ in range(rng.choice((0, 1, 1, 2, 3, 6))))


def value_of(rng: random.Random, pieces: list[str], keys: list[str], depth: int = 0) -> Any:
    roll = rng.random()
    if roll < 0.5 or depth > 2:
        return text_of(rng, pieces)
    if roll < 0.6:
        return rng.choice([0, -1, 10**30, 1.5, -0.0, 1e300, True, False, None])
    if roll < 0.8:
        return [value_of(rng, pieces, keys, depth + 1) for _ in range(rng.randint(0, 3))]
    return {text_of(rng, keys) or "k": value_of(rng, pieces, keys, depth + 1) for _ in range(rng.randint(0, 3))}


def calls_for(name: str, rng: random.Random) -> list[Call]:
    pieces = pieces_for(name, rng)
    keys = ["k", "a_b", "x1"] if name in ("gemma4", "functiongemma") else pieces

    def one() -> Call:
        if rng.random() < 0.3:
            return rng.choice([("fs.now", {}), ("get_it", {"zip": text_of(rng, pieces)})])
        values = {
            "path": text_of(rng, pieces),
            "content": text_of(rng, pieces),
            "options": {text_of(rng, keys) or "k": value_of(rng, pieces, keys) for _ in range(rng.randint(0, 2))},
            "list": [value_of(rng, pieces, keys) for _ in range(rng.randint(0, 3))],
            "count": rng.choice([0, -5, 10**20]),
            "ratio": rng.choice([0.5, -2, 1e-7, 1e22]),
            "force": rng.random() < 0.5,
            "maybe": rng.choice([None, text_of(rng, pieces) + "."]),
        }
        return "write_file", {k: v for k, v in values.items() if rng.random() < 0.5}

    return [one() for _ in range(rng.randint(1, 3))]


@pytest.mark.parametrize("name", sorted(RENDERERS))
def test_hard_values_come_back(name: str) -> None:
    fmt = toolcall.get_format(name)
    options = {"prompt_suffix": "<|start|>assistant" if name == "gpt_oss" else "", "tools": TOOLS}
    for seed in range(scaled(SEEDS)):
        rng = random.Random(f"hard {name} {seed}")
        calls = calls_for(name, rng)
        for render in (r[name] for r in (RENDERERS, VARIANTS) if name in r):
            text = render(calls)
            before = "" if text.startswith(("<|start|>", "<|channel|>", "[{", "{")) else rng.choice(("", "1 < 2.\n"))
            after = "" if fmt.protocol is not None else rng.choice(("", "\nDone [x] {y}."))
            whole = events_of(name, [before + text + after], **options)
            answer = toolcall.fold(whole)
            got = [(call.name, json.loads(call.arguments)) for call in answer.tool_calls]
            assert len(got) == len(calls), (seed, text)
            assert all(a[0] == b[0] and same_json(a[1], b[1]) for a, b in zip(got, calls)), (seed, text)
            assert answer.content.split() == (before + after).split(), (seed, text)
            for pieces in partitions(before + text + after, rng, 2):
                assert merged(events_of(name, pieces, **options)) == merged(whole), (seed, pieces)


JSON_FORMATS = ("hermes", "llama3_json", "mistral", "deepseek_v3", "kimi_k2", "gpt_oss", "cohere_command4", "jamba")


@pytest.mark.parametrize("name", JSON_FORMATS)
def test_escapes_come_back_as_they_were_written(name: str) -> None:
    """Escaped characters, halves of surrogate pairs among them, and numbers keep the model's spelling."""
    values = r'{"path": "\u00e9\ud83d\ude00\u0000\u2028\/\b\f", "content": "\ud83d \udc00x", "count": 1e5, "ratio": -0}'
    suffix = "<|start|>assistant" if name == "gpt_oss" else ""
    text = RENDERERS[name]([("write_file", {"path": "@"})]).replace('{"path": "@"}', values)
    for pieces in ([text], list(text)):
        answer = toolcall.fold(events_of(name, pieces, tools=TOOLS, prompt_suffix=suffix))
        assert [call.arguments for call in answer.tool_calls] == [values]
