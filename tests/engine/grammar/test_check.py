"""The check worker: hostile grammars are errors of one request, never of the process."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import msgspec
import pytest

from engine.grammar.check import CheckFailed, GrammarChecker
from engine.grammar.check_process import STARVED, CheckWorker
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


OK = msgspec.json.encode(GrammarSpec(kind="regex", source="a"))


@pytest.fixture
async def checker():
    checker = GrammarChecker()
    yield checker
    await checker.close()


@pytest.fixture
async def worker():
    worker = CheckWorker(30.0)
    yield worker
    await worker.close()


@pytest.mark.parametrize(("kind", "source"), HOSTILE, ids=[f"{kind}-{source[:12]}" for kind, source in HOSTILE])
async def test_hostile_grammars_are_refused_and_the_checker_lives(checker, kind, source):
    with pytest.raises(GrammarError):
        await checker.check(GrammarSpec(kind=kind, source=source))
    await checker.check(GrammarSpec(kind="regex", source="ok"))


@pytest.mark.parametrize(("kind", "source"), FINE)
async def test_ordinary_grammars_pass(checker, kind, source):
    await checker.check(GrammarSpec(kind=kind, source=source))


async def test_a_worker_that_gets_no_processor_time_is_not_the_grammars_fault(worker):
    await worker.ask(OK)
    process = worker.process
    os.kill(process.pid, signal.SIGSTOP)
    worker.timeout = 0.05
    with pytest.raises(CheckFailed, match="too busy"):
        await worker.ask(OK)
    worker.timeout = 30.0
    await worker.ask(OK)
    assert worker.process.pid != process.pid


async def test_a_worker_that_waits_for_its_turn_is_waited_for(worker):
    await worker.ask(OK)
    process = worker.process
    worker.timeout = 0.5
    os.kill(process.pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(0.7, os.kill, process.pid, signal.SIGCONT)
    await worker.ask(OK)
    assert worker.process.pid == process.pid


async def test_a_grammar_that_takes_too_long_costs_the_worker(worker, monkeypatch):
    await worker.ask(OK)
    process = worker.process
    os.kill(process.pid, signal.SIGSTOP)
    worker.timeout = 0.1
    spent = iter((1.0, 1.08))
    monkeypatch.setattr("engine.grammar.check_process.cpu_seconds", lambda pid: next(spent))
    with pytest.raises(TimeoutError):
        await worker.ask(OK)
    monkeypatch.undo()
    worker.timeout = 30.0
    assert await worker.ask(OK) is None
    assert worker.process.pid != process.pid


class Slow:
    """Stands in for the workers' answers: grammars that hold ``slow`` are too much for the quick one, and the patient
    one takes as long as the test likes."""

    def __init__(self, checker: GrammarChecker, late: bool = False) -> None:
        self.asked: list[str] = []
        self.go_on = asyncio.Event()
        self._late = late
        checker.quick.ask = self.quick
        checker.patient.ask = self.patient

    async def quick(self, payload: bytes) -> str | None:
        self.asked.append("quick")
        await asyncio.sleep(0)
        if b"busy" in payload:
            raise CheckFailed(STARVED)
        if b"slow" in payload:
            raise TimeoutError
        return None

    async def patient(self, payload: bytes) -> str | None:
        self.asked.append("patient")
        await self.go_on.wait()
        if self._late:
            raise TimeoutError
        return None


def regex(source: str) -> GrammarSpec:
    return GrammarSpec(kind="regex", source=source)


@pytest.mark.parametrize("source", ["slow", "busy"])
async def test_slow_grammars_wait_for_one_another_and_hold_up_no_others(checker, source):
    workers = Slow(checker)
    waiting = [asyncio.create_task(checker.check(regex(f"{source}{index}"))) for index in range(3)]
    for index in range(5):
        await checker.check(regex(f"a{index}"))
    assert workers.asked.count("patient") == 1
    assert not any(task.done() for task in waiting)
    workers.go_on.set()
    await asyncio.gather(*waiting)
    assert workers.asked.count("patient") == 3


async def test_a_grammar_that_is_too_slow_for_both_is_refused_and_remembered(checker):
    workers = Slow(checker, late=True)
    workers.go_on.set()
    for _ in range(2):
        with pytest.raises(GrammarError, match="longer than 2 s"):
            await checker.check(regex("slow"))
    assert workers.asked == ["quick", "patient"]


@pytest.mark.parametrize(("source", "asked"), [("a", ["quick"]), ("slow", ["quick", "patient"])])
async def test_requests_that_ask_for_the_same_grammar_share_its_verdict(checker, source, asked):
    workers = Slow(checker)
    waiting = [asyncio.create_task(checker.check(regex(source))) for _ in range(5)]
    for _ in range(20):
        await asyncio.sleep(0)
    workers.go_on.set()
    await asyncio.gather(*waiting)
    assert workers.asked == asked


async def test_who_waits_for_a_verdict_that_its_asker_gave_up_asks_again(checker):
    workers = Slow(checker)
    first, second = [asyncio.create_task(checker.check(regex("slow"))) for _ in range(2)]
    for _ in range(20):
        await asyncio.sleep(0)
    first.cancel()
    workers.go_on.set()
    await second
    assert workers.asked == ["quick", "patient", "patient"]


async def test_a_grammar_that_takes_too_long_really_is_refused(checker):
    checker.quick.timeout = checker.patient.timeout = 0.01
    deep = "(" * 40 + "[a-z]{1,40}" + "{1,40}){1,40}" * 39 + ")"
    with pytest.raises(GrammarError):
        await checker.check(regex(deep))
    checker.quick.timeout = 30.0
    await checker.check(regex("ok"))


@pytest.mark.parametrize("program", ["import no_such_module", "import time; time.sleep(60)"])
async def test_a_worker_that_does_not_start_is_not_the_grammars_fault(checker, monkeypatch, program):
    start = asyncio.create_subprocess_exec
    monkeypatch.setattr("engine.grammar.check_process.START_TIMEOUT_SECONDS", 0.5)
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


async def test_worker_death_while_idle_is_not_noticed_by_clients(worker):
    await worker.ask(OK)
    worker.process.kill()
    await worker.process.wait()
    assert await worker.ask(OK) is None


async def test_a_worker_that_somebody_kills_is_not_the_grammars_fault(worker):
    await worker.ask(OK)
    os.kill(worker.process.pid, signal.SIGSTOP)  # it must not answer before it is killed
    asyncio.get_running_loop().call_later(0.1, worker.process.kill)
    assert await worker.ask(OK) is None
    worker.process.kill()  # not reaped yet
    assert await worker.ask(OK) is None


async def test_what_is_killed_again_and_again_is_refused_but_not_remembered(checker, monkeypatch):
    running = checker.quick.running

    async def doomed():
        process = await running()
        process.kill()
        return process

    monkeypatch.setattr(checker.quick, "running", doomed)
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
