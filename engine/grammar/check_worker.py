"""The killable process that compiles client text first: ``python -m engine.grammar.check_worker``.

Reads one JSON object a line (a GrammarSpec), answers one JSON object a line: {"error": null | text}.
It holds no secrets, may use little memory, and is killed when it takes too long: a crash or a hang here is
a 400 for one client, never a dead engine.
"""

from __future__ import annotations

import json
import resource
import sys

import msgspec

from engine.grammar.interface import GrammarError
from engine.grammar.llguidance_backend import Validator
from engine.messages import GrammarSpec

MEMORY_BYTES = 512 << 20


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


def answer(validator: Validator, line: bytes) -> str | None:
    """The error for one request line, None where the grammar compiles."""
    try:
        validator.validate(msgspec.json.decode(line, type=GrammarSpec))
    except GrammarError as error:
        return str(error)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return f"The grammar cannot be read: {type(error).__name__}."
    return None


def main() -> None:
    validator = Validator()
    _limit_memory()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin.buffer:
        sys.stdout.write(json.dumps({"error": answer(validator, line)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
