"""Speed of the tool-call parser: ``python -m benchmarks.parser [--adversarial] [--repeat N]``.

For three formats and pieces of 1, 4 and 64 characters: microseconds a piece, microseconds a character, MB/s; beside
it the usual way, which keeps the text so far and parses all of it again for each piece (partial-json-parser, for the
JSON format only). ``--adversarial``: seconds for 1 MB of the worst texts, and the ratio of the times of 2n and n.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable, Sequence

import toolcall

SIZES = (1, 4, 64)
CODE = 'def hello(name: str) -> None:\n    print(f"Hello, {name}!")  # a < b && c > d\n\n'
TOOLS = [
    {
        "name": "write_file",
        "parameters": {
            "properties": {"path": {"type": "string"}, "content": {"type": "string"}, "mode": {"type": "integer"}}
        },
    }
]
ARGUMENTS = {"path": "src/hello.py", "content": CODE * 6, "mode": 420}
PROSE = "Let me write that file for you, and then run the tests to see whether they pass.\n"


def texts() -> dict[str, tuple[str, str]]:
    """Label -> (format, text of three calls after some prose)."""
    call = json.dumps({"name": "write_file", "arguments": ARGUMENTS})
    f1 = "".join(f"<tool_call>\n{call}\n</tool_call>\n" for _ in range(3))
    params = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in ARGUMENTS.items())
    f3 = f"<tool_call>\n<function=write_file>\n{params}</function>\n</tool_call>\n" * 3
    pairs = "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in ARGUMENTS.items())
    f12 = f"<tool_call>write_file\n{pairs}</tool_call>\n" * 3
    return {
        "hermes": ("hermes", PROSE + f1),
        "qwen3_coder": ("qwen3_coder", PROSE + f3),
        "glm45": ("glm45", PROSE + f12),
        "plain text": ("hermes", PROSE * 30),
    }


def best_of(repeat: int, run: Callable[[], object]) -> float:
    """CPU seconds of the fastest run."""
    fastest = float("inf")
    for _ in range(repeat):
        start = time.process_time()
        run()
        fastest = min(fastest, time.process_time() - start)
    return fastest


def feed(name: str, pieces: Sequence[str]) -> int:
    parser = toolcall.OutputParser(toolcall.get_format(name), TOOLS)
    events = sum(len(parser.feed(piece)) for piece in pieces)
    return events + len(parser.finish())


def reparse(pieces: Sequence[str]) -> int:
    """The common way to stream JSON arguments: all of the text so far, again, for each piece."""
    from partial_json_parser import Allow, loads

    text, seen = "", 0
    for piece in pieces:
        text += piece
        start = text.rfind("<tool_call>\n")
        body = text[start + 12 :].split("\n</tool_call>")[0] if start >= 0 else ""
        if body.startswith("{"):
            with contextlib.suppress(ValueError):
                seen += len(json.dumps(loads(body, Allow.ALL)))
    return seen


def speed(repeat: int) -> None:
    print(f"{'text':16} {'piece':>5} {'us/piece':>9} {'us/char':>8} {'MB/s':>7}   re-parsing us/piece")
    for label, (name, text) in texts().items():
        for size in SIZES:
            pieces = [text[i : i + size] for i in range(0, len(text), size)]
            took = best_of(repeat, lambda name=name, pieces=pieces: feed(name, pieces))
            other = ""
            if label == "hermes":
                other = f"{best_of(1, lambda pieces=pieces: reparse(pieces)) / len(pieces) * 1e6:12.1f}"
            megabytes = len(text.encode()) / took / 1e6
            rate = f"{took / len(pieces) * 1e6:9.2f} {took / len(text) * 1e6:8.3f} {megabytes:7.2f}"
            print(f"{label:16} {size:5} {rate}   {other}")


def adversarial(repeat: int) -> None:
    from tests.toolcall.adversarial import adversarial as cases

    worst: list[tuple[float, float, str]] = []
    for name in ("hermes", "qwen3_coder", "glm45", "deepseek_v3", "kimi_k2", "mistral", "pythonic"):
        for label, build in cases(name).items():
            short, long = build(500_000), build(1_000_000)
            times = [best_of(repeat, lambda name=name, text=text: feed(name, [text])) for text in (short, long)]
            worst.append((times[1], times[1] / times[0], f"{name}: {label}"))
    print("seconds for 1 MB, time(2n)/time(n)")
    for seconds, ratio, label in sorted(worst, reverse=True)[:10]:
        print(f"{seconds:7.3f} {ratio:6.2f}   {label}")
    print("largest ratios:", ", ".join(f"{r:.2f} {label}" for _, r, label in sorted(worst, key=lambda w: -w[1])[:4]))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--adversarial", action="store_true")
    options.add_argument("--repeat", type=int, default=5)
    chosen = options.parse_args()
    (adversarial if chosen.adversarial else speed)(chosen.repeat)


if __name__ == "__main__":
    main()
