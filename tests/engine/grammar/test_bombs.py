"""S8: a grammar that is meant to hurt is refused or followed, soon, by a worker of bounded size and a living engine.

CALLGATE_TEST_SCALE=5 takes every bomb and 10,000 schemas.
"""

from __future__ import annotations

import collections
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import orjson
import pytest

from engine.grammar import llguidance_backend
from engine.grammar.check import GrammarChecker
from engine.grammar.check_worker import MEMORY_BYTES
from engine.messages import GrammarSpec
from server.constrainer import Constrained, Constrainer
from server.constraints import ConstraintPlan, constraint, parse_response_format, parse_structured_outputs
from server.errors import BadRequest
from server.tools import Tools
from tests.engine.grammar.bombs import bombs, megabyte
from tests.engine.grammar.generations import RandomModel, backend
from tests.engine.scale import scaled
from tests.engine.scheduler.harness import Harness

SECONDS = 5.0 if os.environ.get("CALLGATE_TEST_SCALE") else 60.0
"""The promise, and what a machine that does other things at the same time is held to."""
GOLDEN = list(b"The golden probe.")


async def admit(fields: dict[str, Any], constrainer: Constrainer) -> Constrained:
    """What the server does with the fields. Raises BadRequest."""
    fields = orjson.loads(json.dumps(fields))
    shape = parse_response_format(fields.get("response_format"))
    if "structured_outputs" in fields:
        shape = parse_structured_outputs(fields["structured_outputs"])
    return await constraint(ConstraintPlan(format="hermes", tools=Tools(), shape=shape), constrainer)


def peak_bytes(pid: int) -> int:
    """The most memory that a process held so far."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    line = next((line for line in status.splitlines() if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) << 10


class Engine:
    """A scheduler that goes on from bomb to bomb, and whether it still writes what it wrote at first."""

    def __init__(self) -> None:
        self.grammar = backend()
        self.harness = Harness(executor=RandomModel(512), grammar=self.grammar)
        self.count = 0
        self.golden = self.write()

    def write(self, spec: GrammarSpec | None = None) -> list[int]:
        """30 tokens under a grammar beside the probe, which must not notice."""
        self.count += 1
        name = f"golden {self.count}"
        self.harness.add(name, GOLDEN, max_tokens=24, temperature=0.0)
        if spec is not None:
            self.harness.add(f"bomb {self.count}", GOLDEN, max_tokens=30, temperature=1.0, seed=1, grammar=spec)
        return self.harness.run()[name].token_ids

    def end_of_bomb(self) -> str:
        finish = self.harness.results[f"bomb {self.count}"].finish
        assert finish is not None
        assert finish.type in ("stop", "length") or 400 <= finish.status < 500, finish
        return finish.type


@pytest.mark.timeout(1800)
async def test_bombs(capsys: pytest.CaptureFixture[str]) -> None:
    checker = GrammarChecker()
    constrainer, engine = Constrainer(checker), Engine()
    tally: collections.Counter[str] = collections.Counter()
    slowest, biggest = (0.0, ""), 0
    chosen = [*random.Random(2).sample(bombs(), min(len(bombs()), scaled(60))), megabyte()]
    try:
        for name, fields in chosen:
            start = time.monotonic()
            try:
                made = await admit(fields, constrainer)
            except BadRequest as error:
                tally["refused" if error.param else f"refused without a place: {name}"] += 1
            else:
                engine.write(made.spec)
                tally[f"followed, {engine.end_of_bomb()}"] += 1
                assert engine.write() == engine.golden, name
            slowest = max(slowest, (time.monotonic() - start, name))
            process = checker.quick.process
            biggest = max(biggest, peak_bytes(process.pid) if process is not None and process.returncode is None else 0)
            assert engine.grammar.cached_bytes <= llguidance_backend.CACHE_BYTES
    finally:
        await constrainer.close()
    with capsys.disabled():
        print(f"\n{len(chosen)} bombs: {dict(tally)}; slowest {slowest[0]:.2f} s ({slowest[1]}); {biggest >> 20} MB")
    assert slowest[0] <= SECONDS, slowest
    assert biggest <= MEMORY_BYTES
    assert tally["refused"]
    assert tally["followed, length"]
    assert not [outcome for outcome in tally if "without a place" in outcome]


def test_many_schemas_keep_the_cache_within_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    engine, count = backend(), scaled(2000)
    before = _resident()
    for index in range(count):
        schema = {"type": "object", "properties": {f"p{index}": {"type": "string"}, "b": {"enum": [index, "x"]}}}
        engine.compile(GrammarSpec(kind="json_schema", source=json.dumps(schema)))
        assert engine.cached_bytes <= llguidance_backend.CACHE_BYTES
    grown = _resident() - before
    with capsys.disabled():
        print(f"\n{count} schemas: {engine.cached_bytes >> 20} MB counted, {grown >> 20} MB more resident")
    assert grown <= 2 * llguidance_backend.CACHE_BYTES


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text("ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_there_are_enough_bombs() -> None:
    names = [name for name, _ in bombs()]
    assert len(names) == len(set(names)) >= 200
