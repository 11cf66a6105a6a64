"""Compare grammar backends on JSON schemas: what they accept, refuse and get wrong, and how long they take.

    python benchmarks/grammar_backends.py --suite JSON-SCHEMA-TEST-SUITE/tests/draft2020-12 --schemas FILE.jsonl

``--suite``: the folder of a draft in the JSON-Schema-Test-Suite (it is inside the jsonschema sdist, under
json/). ``--schemas``: JSON lines, one schema each. A backend that is not installed is left out. Each runs in a
process of its own, so a crash is counted and not fatal. Prints a table and appends JSON lines to --out.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BACKENDS = ("llguidance", "xgrammar")
VOCAB = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
EOS = 256


def llguidance_checker() -> tuple[Callable[[str], Any], Callable[[Any, str], bool], Callable[[Any], float]]:
    """(compile, accepts, seconds of the first mask) for llguidance, unsupported keywords refused."""
    from engine.grammar.llguidance_backend import LLGuidanceBackend, VocabularyWrapper
    from engine.messages import GrammarSpec

    wrapper = VocabularyWrapper(VOCAB, [EOS], EOS, lambda text: list(text.encode()))
    backend = LLGuidanceBackend(wrapper, len(VOCAB), [EOS])
    mask = np.zeros(9, dtype=np.int32)

    def compile_schema(schema: str) -> Any:
        return backend.compile(GrammarSpec(kind="json_schema", source=schema))

    def accepts(compiled: Any, text: str) -> bool:
        matcher = backend.start(compiled)
        return matcher.accept_all(list(text.encode())) and matcher.accept(EOS)

    def mask_seconds(compiled: Any) -> float:
        matcher = backend.start(compiled)
        start = time.perf_counter()
        matcher.fill_mask(mask)
        return time.perf_counter() - start

    return compile_schema, accepts, mask_seconds


def xgrammar_checker() -> tuple[Callable[[str], Any], Callable[[Any, str], bool], Callable[[Any], float]]:
    """The same for xgrammar, in its non-strict mode with free white space."""
    import xgrammar

    info = xgrammar.TokenizerInfo(VOCAB, vocab_type=xgrammar.VocabType.RAW, vocab_size=len(VOCAB), stop_token_ids=[EOS])
    compiler = xgrammar.GrammarCompiler(info, cache_enabled=False)
    mask = xgrammar.allocate_token_bitmask(1, len(VOCAB))

    def compile_schema(schema: str) -> Any:
        return compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)

    def accepts(compiled: Any, text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(EOS)

    def mask_seconds(compiled: Any) -> float:
        matcher = xgrammar.GrammarMatcher(compiled)
        start = time.perf_counter()
        matcher.fill_next_token_bitmask(mask)
        return time.perf_counter() - start

    return compile_schema, accepts, mask_seconds


CHECKERS = {"llguidance": llguidance_checker, "xgrammar": xgrammar_checker}


def suite_cases(folder: pathlib.Path) -> Iterator[dict[str, Any]]:
    """Groups of the test suite: {schema, tests: [{data, valid}]}."""
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text()):
            yield {
                "schema": group["schema"],
                "tests": [{"data": t["data"], "valid": t["valid"]} for t in group["tests"]],
            }


def worker(name: str) -> None:
    """Read one case a line, answer one verdict a line (runs in a child process)."""
    compile_schema, accepts, mask_seconds = CHECKERS[name]()
    for line in sys.stdin:
        case = json.loads(line)
        start = time.perf_counter()
        try:
            compiled = compile_schema(json.dumps(case["schema"]))
        except Exception as error:
            print(json.dumps({"refused": str(error)[:80]}), flush=True)
            continue
        verdict: dict[str, Any] = {"compile": time.perf_counter() - start, "mask": mask_seconds(compiled)}
        verdict["results"] = [accepts(compiled, json.dumps(t["data"], ensure_ascii=False)) for t in case["tests"]]
        print(json.dumps(verdict), flush=True)


def judge(name: str, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Run a backend over all cases, restarting it where it dies."""
    count = {"schemas": len(cases), "refused": 0, "crashed": 0, "right": 0, "wrongly accepted": 0, "wrongly refused": 0}
    compiles, masks = [], []
    process = None
    for case in cases:
        if process is None or process.poll() is not None:
            process = subprocess.Popen(
                [sys.executable, __file__, "--worker", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            count["crashed"] += 1
            process.wait()
            continue
        verdict = json.loads(line)
        if "refused" in verdict:
            count["refused"] += 1
            continue
        compiles.append(verdict["compile"])
        masks.append(verdict["mask"])
        for got, test in zip(verdict["results"], case["tests"], strict=True):
            count["right" if got == test["valid"] else "wrongly accepted" if got else "wrongly refused"] += 1
    if process is not None:
        process.kill()
        process.wait()
    times = {
        "compile p50 ms": _quantile(compiles, 0.5),
        "compile p99 ms": _quantile(compiles, 0.99),
        "mask p50 us": 1e3 * _quantile(masks, 0.5),
    }
    return {"backend": name, **count, **times}


def _quantile(values: list[float], q: float) -> float:
    if len(values) < 2:
        return 0.0
    return round(1e3 * statistics.quantiles(values, n=100)[min(98, round(q * 100) - 1)], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=pathlib.Path)
    parser.add_argument("--schemas", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--worker", choices=BACKENDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker)
        return
    sets = {}
    if args.suite:
        sets["test suite"] = list(suite_cases(args.suite))
    if args.schemas:
        sets["schemas"] = [{"schema": json.loads(line), "tests": []} for line in args.schemas.open()]
    for label, cases in sets.items():
        for name in BACKENDS:
            row = {"set": label, **judge(name, cases)}
            print(json.dumps(row))
            if args.out:
                with args.out.open("a") as out:
                    out.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
