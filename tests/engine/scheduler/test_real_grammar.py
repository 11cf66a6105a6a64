"""The scheduler with llguidance: real masks and forced tokens, and the same answer however it is computed."""

from __future__ import annotations

import json

import pytest

from engine.grammar.factory import build_backend
from engine.messages import GrammarSpec
from engine.text.byte_tokenizer import EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.engine.scheduler.harness import Harness

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["get_weather", "get_time"]},
        "arguments": {
            "type": "object",
            "properties": {"location": {"type": "string", "maxLength": 12}, "days": {"enum": [1, 2, 30]}},
            "required": ["location", "days"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
SPEC = GrammarSpec(kind="json_schema", source=json.dumps(SCHEMA))


@pytest.fixture(scope="module")
def backend():
    return build_backend(ByteTokenizer(), VOCAB_SIZE, [EOS_ID])


def answers(backend, *, logprobs=False, **config):
    harness = Harness(grammar=backend, pages=1024, **config)
    for index in range(6):
        sampling = {"temperature": float(index % 2), "seed": index, "logprobs": logprobs}
        harness.add(str(index), range(20 + index), max_tokens=300, grammar=SPEC, **sampling)
    results = harness.run()
    assert all(result.finish.type == "stop" for result in results.values())
    return [bytes(result.token_ids).decode() for result in results.values()], harness.scheduler.num_steps


def test_every_answer_is_valid_json_of_the_schema(backend):
    for text in answers(backend)[0]:
        value = json.loads(text)
        assert value["name"] in ("get_weather", "get_time")
        assert value["arguments"]["days"] in (1, 2, 30)


@pytest.mark.parametrize(
    "config", [{"chunked_prefill_size": 3}, {"num_draft_tokens": 4}, {"page_size": 1}, {"max_running_requests": 1}]
)
def test_chunks_drafts_and_pages_change_nothing(backend, config):
    assert answers(backend, **config)[0] == answers(backend)[0]


def test_forced_tokens_save_steps_and_change_nothing(backend):
    forced, steps = answers(backend)
    sampled, more = answers(backend, logprobs=True)
    assert forced == sampled
    assert steps < 0.75 * more
