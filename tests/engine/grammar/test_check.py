"""The check worker: hostile grammars are errors of one request, never of the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from engine.grammar.check import CheckFailed, GrammarChecker
from engine.grammar.interface import GrammarError
from engine.grammar.source import regex_nesting
from engine.messages import GrammarSpec

HOSTILE = [
    ("regex", "(" * 5000),
    ("regex", "a?" * 50_000),
    ("regex", "("),
    ("regex", "^+[a-z]$"),
    ("lark", "start: start start"),
    ("lark", "start: undefined_rule"),
    ("lark", "this is no grammar"),
    ("ebnf", "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
    ("ebnf", "no rules here"),
    ("choice", "[]"),
    ("choice", json.dumps(["x"] * 100_000)),
    ("choice", "{"),
    ("json_schema", '{"type": "banana"}'),
    ("json_schema", "{"),
    ("json_schema", '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}'),
    ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}'),
]
FINE = [
    ("regex", "[a-z]{1,9}"),
    ("lark", 'start: "a" | "b"'),
    ("ebnf", 'root ::= "a" | "b" root'),
    ("choice", '["yes", "no"]'),
    ("json_schema", '{"type": "object", "properties": {"a": {"type": "string", "maxLength": 1000000}}}'),
    ("json_schema", '{"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}'),
]


@pytest.fixture
async def checker():
    checker = GrammarChecker()
    yield checker
    await checker.close()


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=[f"{kind}-{source[:12]}" for kind, source in HOSTILE])
async def test_hostile_grammars_are_refused_and_the_checker_lives(checker, kind, source):
    with pytest.raises(GrammarError):
        await checker.check(GrammarSpec(kind=kind, source=source))
    await checker.check(GrammarSpec(kind="regex", source="ok"))


@pytest.mark.parametrize(("kind", "source"), FINE)
async def test_ordinary_grammars_pass(checker, kind, source):
    await checker.check(GrammarSpec(kind=kind, source=source))


async def test_a_worker_that_gets_no_processor_time_is_not_the_grammars_fault(checker):
    await checker.check(GrammarSpec(kind="regex", source="a"))
    process = checker._process
    os.kill(process.pid, signal.SIGSTOP)
    checker._timeout = 0.05
    with pytest.raises(CheckFailed, match="too busy"):
        await checker.check(GrammarSpec(kind="regex", source="b"))
    checker._timeout = 30.0
    await checker.check(GrammarSpec(kind="regex", source="b"))
    assert checker._process.pid != process.pid


async def test_a_worker_that_waits_for_its_turn_is_waited_for(checker):
    await checker.check(GrammarSpec(kind="regex", source="a"))
    process = checker._process
    checker._timeout = 0.5
    os.kill(process.pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.7, os.kill, process.pid, signal.SIGCONT)
    await checker.check(GrammarSpec(kind="regex", source="b"))
    assert checker._process.pid == process.pid


async def test_a_grammar_that_takes_too_long_is_refused_and_a_new_worker_starts(checker, monkeypatch):
    await checker.check(GrammarSpec(kind="regex", source="a"))
    process = checker._process
    os.kill(process.pid, signal.SIGSTOP)
    checker._timeout = 0.1
    spent = iter((1.0, 1.08))
    monkeypatch.setattr("engine.grammar.check.cpu_seconds", lambda pid: next(spent))
    with pytest.raises(GrammarError, match="longer than"):
        await checker.check(GrammarSpec(kind="regex", source="b"))
    monkeypatch.undo()
    checker._timeout = 30.0
    await checker.check(GrammarSpec(kind="regex", source="c"))
    assert checker._process.pid != process.pid


@pytest.mark.parametrize("program", ["import no_such_module", "import time; time.sleep(60)"])
async def test_a_worker_that_does_not_start_is_not_the_grammars_fault(checker, monkeypatch, program):
    start = asyncio.create_subprocess_exec
    monkeypatch.setattr("engine.grammar.check.START_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(
        asyncio, "create_subprocess_exec", lambda python, *_, **options: start(python, "-c", program, **options)
    )
    with pytest.raises(CheckFailed, match="did not start"):
        await checker.check(GrammarSpec(kind="regex", source="a"))
    monkeypatch.undo()
    await checker.check(GrammarSpec(kind="regex", source="a"))


async def test_a_process_that_cannot_be_made_is_not_the_grammars_fault(checker, monkeypatch):
    async def fail(*_args, **_options):
        raise BlockingIOError("no process is left")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", fail)
    with pytest.raises(CheckFailed, match="did not start"):
        await checker.check(GrammarSpec(kind="regex", source="a"))
    monkeypatch.undo()
    await checker.check(GrammarSpec(kind="regex", source="a"))


async def test_worker_death_while_idle_is_not_noticed_by_clients(checker):
    await checker.check(GrammarSpec(kind="regex", source="a"))
    checker._process.kill()
    await checker._process.wait()
    await checker.check(GrammarSpec(kind="regex", source="d"))


async def test_a_worker_that_somebody_kills_is_not_the_grammars_fault(checker):
    await checker.check(GrammarSpec(kind="regex", source="a"))
    os.kill(checker._process.pid, signal.SIGSTOP)  # it must not answer before it is killed
    asyncio.get_running_loop().call_later(0.1, checker._process.kill)
    await checker.check(GrammarSpec(kind="regex", source="e"))
    checker._process.kill()  # not reaped yet
    await checker.check(GrammarSpec(kind="regex", source="f"))


async def test_what_is_killed_again_and_again_is_refused_but_not_remembered(checker, monkeypatch):
    running = checker._running

    async def doomed():
        process = await running()
        process.kill()
        return process

    monkeypatch.setattr(checker, "_running", doomed)
    with pytest.raises(CheckFailed, match="was killed"):
        await checker.check(GrammarSpec(kind="regex", source="g"))
    monkeypatch.undo()
    await checker.check(GrammarSpec(kind="regex", source="g"))


async def test_verdicts_are_remembered_and_bounded(checker, monkeypatch):
    monkeypatch.setattr("engine.grammar.check.CACHE_ENTRIES", 3)
    for index in range(6):
        await checker.check(GrammarSpec(kind="regex", source=f"a{index}"))
    assert len(checker._verdicts) == 3


def test_regex_nesting_knows_escapes_and_classes():
    assert regex_nesting("((a))") == 2
    assert regex_nesting(r"\(\(a") == 0
    assert regex_nesting("[((]a(b)") == 1
