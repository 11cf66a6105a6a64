"""Constrained generations of a random model through the real scheduler, sampler and grammar backend."""

from __future__ import annotations

import collections
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonschema_rs
import numpy as np

import toolcall
from engine.executor.hash_lm import UNPRINTABLE_BIAS, HashLMExecutor, _mix
from engine.grammar.interface import GrammarBackend
from engine.grammar.llguidance_backend import LLGuidanceBackend, VocabularyWrapper
from engine.messages import GrammarSpec
from engine.sampling.sampler import Sampler
from engine.text.byte_tokenizer import EOS_ID, SPECIAL_TOKENS, ByteTokenizer
from server.constrainer import Constrainer, UnusableSchema
from tests.engine.scheduler.harness import Harness, Result
from toolcall.constraints import ConstrainedTool, ConstraintRequest

Kind = Literal["call", "one call", "document", "call or document"]
KINDS: tuple[Kind, ...] = ("call", "one call", "document", "call or document")
PIECES = (
    '": "', '", "', '{"', '"}', '"}}', "}\n", "\n\n", "```json\n", "    ", "true", "false", "null", "name", "argu", "ments",
    "parameters", '{"name": "', "f0", "f1", "ab", "12", "0.", "-1", "99", "e+", "202", "0-1", "[]", "{}", "],", '":', '",',
    "é", "中", "\\u00", '\\"', "<tool", "_call", "</", "\n<", "xyz", "city", " un", "it", "\ufeff", "\\n",
)  # fmt: skip
TOKENS = (
    *(bytes([byte]) for byte in range(256)),
    *(text.encode() for text in SPECIAL_TOKENS),
    *(text.encode() for text in PIECES),
)
VOCAB_SIZE = len(TOKENS) + 5
"""Bytes and special tokens under their ids in ByteTokenizer, then longer pieces; wider than that, as logits are."""
END = {EOS_ID: 60.0, ord('"'): 6.0, ord("\n"): 38.0, ord("`"): 3.0, ord("}"): 4.0, ord("]"): 4.0}
"""A logit_bias with which a random model comes to an end where the grammar lets it."""
MAX_LENGTH = 700


class RandomModel(HashLMExecutor):
    """hash-lm over TOKENS."""

    def __init__(self, num_pages: int) -> None:
        super().__init__(num_pages)
        self.vocab_size = VOCAB_SIZE
        self._sampler = Sampler(VOCAB_SIZE)
        self._vocab = _mix(np.arange(1, VOCAB_SIZE + 1, dtype=np.uint64))
        self._bias = np.full(VOCAB_SIZE, UNPRINTABLE_BIAS, np.float32)
        self._bias[32:127] = self._bias[len(TOKENS) - len(PIECES) : len(TOKENS)] = 0.0


def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(VocabularyWrapper(TOKENS, [EOS_ID], EOS_ID, _encode), VOCAB_SIZE, [EOS_ID])


def _encode(text: str) -> list[int]:
    """Longest piece first."""
    data, ids, at = text.encode(), list[int](), 0
    longer = sorted(range(256, len(TOKENS)), key=lambda token: -len(TOKENS[token]))
    while at < len(data):
        token = next((token for token in longer if data.startswith(TOKENS[token], at)), data[at])
        ids.append(token)
        at += len(TOKENS[token])
    return ids


@dataclass
class Task:
    """One generation to be: what was declared, and the grammar of it."""

    kind: Kind
    format: str
    schemas: Mapping[str, Any]
    document: Any
    spec: GrammarSpec
    relaxed: bool


@dataclass
class Tally:
    """What came of all tasks. wrong: texts that break their promise."""

    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))


async def admit(
    constrainer: Constrainer, schemas: Sequence[Any], kind: Kind, format_name: str, tally: Tally
) -> Task | None:
    """The request as the server would admit it; None where it refuses the schema."""
    tools = [ConstrainedTool(f"f{index}", schema) for index, schema in enumerate(schemas)]
    wants_call, wants_document = kind != "document", "document" in kind
    request = ConstraintRequest(
        format=format_name,
        tools=tools if wants_call else (),
        choice="auto" if wants_document else "required",
        parallel=kind != "one call",
        document=schemas[0] if wants_document else None,
    )
    try:
        made = await constrainer.constrain(request)
    except UnusableSchema:
        tally.counts["schemas refused"] += 1
        return None
    assert made.spec is not None
    named = {tool.name: tool.parameters for tool in tools} if wants_call else {}
    return Task(kind, format_name, named, request.document, made.spec, bool(made.relaxations))


def generate(
    tasks: Sequence[tuple[Task, int]], grammar: GrammarBackend | None, rng: random.Random, **config: Any
) -> tuple[Harness, dict[str, tuple[Task, Result]]]:
    """Every task with its number of choices, all in one scheduler with other requests beside them."""
    pages = config.pop("pages", 512)
    harness = Harness(executor=RandomModel(pages), grammar=grammar, **config)
    rids: dict[str, Task] = {}
    for index, (task, choices) in enumerate(tasks):
        prompt = [rng.randrange(256) for _ in range(rng.randint(1, 60))]
        logprobs = rng.random() < 0.3
        for choice in range(choices):
            rid = f"{index}.{choice}"
            rids[rid] = task
            sampling = {"temperature": rng.choice([0.0, 1.0, 1.0]), "seed": rng.getrandbits(31)}
            bias = END if rng.random() < 0.85 else {}
            sampling |= {"logit_bias": bias, "max_tokens": MAX_LENGTH - len(prompt) - 1, "logprobs": logprobs}
            harness.add(rid, prompt, grammar=task.spec, **sampling)
        if rng.random() < 0.2:
            harness.add(f"free {index}", prompt, max_tokens=rng.randint(1, 40))
    results = harness.run(1_000_000)
    return harness, {rid: (task, results[rid]) for rid, task in rids.items()}


def judge(task: Task, result: Result, tally: Tally) -> None:
    """Count one result; one that breaks its promise is kept."""
    text = b"".join(TOKENS[token] for token in result.token_ids if token != EOS_ID).decode("utf-8", "replace")
    assert result.finish is not None
    tally.counts["generations"] += 1
    if result.finish.type == "length":
        tally.counts["finish_reason length"] += 1
        return
    reason = f"finish {result.finish}" if result.finish.type != "stop" else _fault(task, text)
    if reason:
        tally.counts["wrong"] += 1
        tally.wrong.append(f"{reason}\n{text[:1000]}\n{json.dumps([task.schemas, task.document])[:3000]}")
    else:
        tally.counts["relaxed, well formed" if task.relaxed else "valid"] += 1


def _fault(task: Task, text: str) -> str:
    """What is wrong with a whole answer; "" for nothing. A relaxed schema promises no more than its form."""
    tools = [{"type": "function", "function": {"name": n, "parameters": s}} for n, s in task.schemas.items()]
    answer = toolcall.parse(text, tools, format=task.format)
    if not answer.tool_calls:
        if task.document is None:
            return "no call"
        return _invalid(task.document, load(text), task.relaxed)
    if task.kind == "document":
        return ""
    if (answer.content or "").strip():
        return f"text beside calls: {answer.content!r}"
    if task.kind == "one call" and len(answer.tool_calls) != 1:
        return f"{len(answer.tool_calls)} calls"
    faults = [_invalid(task.schemas[c.name], load(c.arguments), task.relaxed) for c in answer.tool_calls]
    return next(filter(None, faults), "")


def load(text: str) -> Any:
    """JSON as it stands: a number beyond a double (1e999) is a number, not infinity."""
    return json.loads(text, parse_float=lambda number: max(-sys.float_info.max, min(sys.float_info.max, float(number))))


def _invalid(schema: Any, value: Any, relaxed: bool) -> str:
    if relaxed:
        return "" if isinstance(value, dict) else "no object"
    validator = jsonschema_rs.validator_for(schema)
    return next((f"{error.message} at {error.instance_path}" for error in validator.iter_errors(value)), "")


__all__ = ["KINDS", "ByteTokenizer", "Tally", "Task", "admit", "backend", "generate", "judge"]
