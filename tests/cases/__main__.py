"""``python -m tests.cases FILE.jsonl [--base-url URL] [--tier must] [--kind parse] [--format hermes] [--id ID]``.

Kinds request, grammar and api are asked of the server at --base-url (its key in CALLGATE_API_KEY); without it, of a
gateway in this process over a random model that obeys grammars, and over scripted models.

Prints each case that fails with what differed, then what was not run, by kind or format, and last the line
``N passed, M failed, K not run``. Exit status 1 if a case failed.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.cases import server_cases, template_cases, text_cases
from tests.cases.gateway import Gateways
from tests.cases.text_cases import NotRun

Check = Callable[[Mapping[str, Any]], list[str]]


def kinds(gateways: Gateways) -> dict[str, Check]:
    """How each kind of case is checked."""

    def ask(case: Mapping[str, Any]) -> list[str]:
        return server_cases.check(case, gateways)

    def stream(case: Mapping[str, Any]) -> list[str]:
        given = case.get("input")
        asks = isinstance(given, dict) and "logprobs" in given and "choice0" not in given
        return ask(case) if asks else text_cases.check(case)

    text, template = text_cases.check, template_cases.check
    return {"parse": text, "stream": stream, "template": template, "request": ask, "grammar": ask, "api": ask}


def read(path: Path) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError:
                yield number, None


def outcome(case: Any, known: Mapping[str, Check]) -> list[str]:
    if not isinstance(case, dict) or not isinstance(case.get("id"), str):
        raise NotRun("malformed line")
    check = known.get(str(case.get("kind")))
    if check is None:
        raise NotRun(f"kind {case.get('kind')}")
    try:
        return check(case)
    except NotRun:
        raise
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def main(argv: Sequence[str] | None = None) -> int:
    options = _options(argv)
    gateways = Gateways(options.base_url, os.environ.get("CALLGATE_API_KEY", ""))
    try:
        return _run(options, kinds(gateways))
    finally:
        gateways.close()


def _run(options: argparse.Namespace, known: Mapping[str, Check]) -> int:
    passed = failed = 0
    not_run: dict[str, list[str]] = collections.defaultdict(list)
    tiers: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for number, case in read(options.file):
        fields = case if isinstance(case, dict) else {}
        if any(want and fields.get(key) not in want for key, want in _filters(options)):
            continue
        name = str(fields.get("id", f"line {number}"))
        try:
            problems = outcome(case, known)
        except NotRun as reason:
            not_run[str(reason)].append(name)
            continue
        tiers[str(fields.get("tier"))][0] += not problems
        tiers[str(fields.get("tier"))][1] += 1
        passed, failed = passed + (not problems), failed + bool(problems)
        if problems:
            print(f"FAILED {name} ({fields.get('tier')}, {fields.get('format')})")
            print("".join(f"    {p[:600]}\n" for p in problems[:4]), end="")
    for why, names in sorted(not_run.items()):
        print(f"not run, {why}: {', '.join(names)}")
    for tier, (good, total) in sorted(tiers.items()):
        print(f"tier {tier}: {good} of {total}")
    print(f"{passed} passed, {failed} failed, {sum(map(len, not_run.values()))} not run")
    return 1 if failed else 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cases", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--base-url", default="")
    for name in ("tier", "kind", "format", "id"):
        parser.add_argument(f"--{name}", action="append")
    return parser.parse_args(argv)


def _filters(options: argparse.Namespace) -> list[tuple[str, list[str] | None]]:
    return [(name, getattr(options, name)) for name in ("tier", "kind", "format", "id")]


if __name__ == "__main__":
    sys.exit(main())
