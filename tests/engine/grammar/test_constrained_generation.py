"""C4: whatever the model, what a grammar lets it write validates, or the answer ran out of tokens.

CALLGATE_TEST_SCALE=20 makes 5,000 generations over 500 schemas; CALLGATE_SCHEMAS may name a file of more schemas,
one a line, which are mixed in.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.clients
from server.constrainer import Constrainer
from tests.engine.grammar.generations import KINDS, Tally, Task, admit, backend, generate, judge
from tests.engine.grammar.random_schemas import recorded, schemas
from tests.engine.scale import scaled

RECORDED = Path(tests.clients.__file__).parent / "recorded"
BATCH = 25
CONFIGS: tuple[dict[str, Any], ...] = (
    {"pages": 128, "max_running_requests": 16, "num_draft_tokens": 4},
    {"pages": 64, "max_running_requests": 12, "num_draft_tokens": 4, "chunked_prefill_size": 24},
    {"pages": 512, "max_running_requests": 32, "num_draft_tokens": 0},
)
"""The first two hold far fewer pages than their requests come to need: they preempt."""


def all_schemas(count: int, *, markers: bool) -> list[Any]:
    """``count`` schemas: made up, sent by real clients, and of the file that CALLGATE_SCHEMAS names."""
    real = {
        json.dumps(schema, sort_keys=True) for file in sorted(RECORDED.glob("*.json*")) for schema in recorded(file)
    }
    rng = random.Random(7)
    from_clients = [json.loads(text) for text in sorted(real)]
    given = [json.loads(line) for line in _lines(os.environ.get("CALLGATE_SCHEMAS", ""))]
    found = rng.sample(from_clients, min(len(from_clients), count // 5)) + rng.sample(
        given, min(len(given), count // 3)
    )
    return [*found, *schemas(count - len(found), seed=11, markers=markers)]


def _lines(path: str) -> Iterator[str]:
    if path:
        yield from Path(path).read_text("utf-8").splitlines()


async def tasks_of(all_of_them: list[Any], formats: tuple[str, ...], tally: Tally) -> list[Task]:
    """Two tasks for each schema: kinds and formats in turn, sometimes with a second tool."""
    constrainer, rng, tasks = Constrainer(), random.Random(3), []
    try:
        for index, schema in enumerate(all_of_them):
            several = [schema, rng.choice(all_of_them)] if index % 3 == 0 else [schema]
            for turn in range(2):
                kind = KINDS[(index + 2 * turn) % len(KINDS)]
                found = await admit(constrainer, several, kind, formats[(index + turn) % len(formats)], tally)
                tasks += [found] if found is not None else []
    finally:
        await constrainer.close()
    return tasks


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("formats", [("hermes",), ("qwen3_coder", "llama3_json", "mistral", "glm45")], ids=str)
def test_every_generation_validates(formats: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    tally, rng, grammar = Tally(), random.Random(5), backend()
    native = len(formats) == 1
    tasks = asyncio.run(tasks_of(all_schemas(scaled(25 if native else 8), markers=native), formats, tally))
    preemptions = drafts = 0
    for start in range(0, len(tasks), BATCH):
        batch = [(task, 5) for task in tasks[start : start + BATCH]]
        harness, results = generate(batch, grammar, rng, **CONFIGS[start // BATCH % len(CONFIGS)])
        stats = harness.scheduler.stats()
        preemptions, drafts = preemptions + stats.preemptions, drafts + stats.draft_tokens
        for task, result in results.values():
            judge(task, result, tally)
    with capsys.disabled():
        print(f"\n{formats}: {len(tasks)} grammars; {tally}; {preemptions} preemptions, {drafts} draft tokens")
    assert not tally.wrong, "\n\n".join(tally.wrong[:5])
    assert tally.counts["valid"] > tally.counts["generations"] // 2
    assert preemptions > 0
    assert drafts > 0
