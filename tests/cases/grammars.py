"""What grammars allow, and calls that keep them: helpers of the cases that need a server."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from engine.grammar.factory import build_backend
from engine.messages import GrammarSpec
from engine.text.byte_tokenizer import EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.cases.text_cases import Case

VALUES = {"string": "Lima", "integer": 3, "number": 1.5, "boolean": True, "array": [], "object": {}}


def write_calls(calls: Sequence[Mapping[str, Any]]) -> str:
    """Calls as a hermes model writes them."""
    bodies = [{"name": call["name"], "arguments": call["arguments"]} for call in calls]
    return "\n".join(f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>" for body in bodies)


def example_call(case: Case) -> dict[str, Any]:
    """A valid call of the case's first tool."""
    function = case["tools"][0]["function"]
    schema = function.get("parameters") or {}
    properties = schema.get("properties") or {}
    return {
        "name": function["name"],
        "arguments": {name: VALUES[properties[name]["type"]] for name in schema.get("required") or ()},
    }


def follows(spec: GrammarSpec, text: str) -> bool:
    """The text, and its end, are allowed by the grammar."""
    backend = build_backend(ByteTokenizer(), VOCAB_SIZE, [EOS_ID])
    matcher = backend.matcher(backend.compile(spec))
    return all(matcher.accept(token) for token in [*ByteTokenizer().encode(text), EOS_ID])


def same_language(first: GrammarSpec | None, second: GrammarSpec | None) -> bool:
    """Both allow the same tokens at every step of a few random walks."""
    if first is None or second is None:
        return first is second
    backend = build_backend(ByteTokenizer(), VOCAB_SIZE, [EOS_ID])
    for seed in range(3):
        rng = random.Random(seed)
        matchers = [backend.matcher(backend.compile(spec)) for spec in (first, second)]
        for _ in range(200):
            masks = np.zeros((2, (VOCAB_SIZE + 31) // 32), np.int32)
            for matcher, mask in zip(matchers, masks, strict=True):
                matcher.fill_mask(mask)
            if not np.array_equal(masks[0], masks[1]):
                return False
            bits = np.unpackbits(masks[0].view(np.uint8), bitorder="little")[:VOCAB_SIZE]
            token = rng.choice(np.flatnonzero(bits).tolist())
            if token == EOS_ID or not all(matcher.accept(token) for matcher in matchers):
                break
    return True
