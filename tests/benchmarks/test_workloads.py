"""The workloads are the same in every commit, and the fields that force a length are the server's own."""

from __future__ import annotations

import hashlib
import itertools
import json

import pytest

from benchmarks.serving.workloads import KINDS, TURNS, WORKLOADS, complete

DIGESTS = {
    "W1": "27e65697cf058dba",
    "W2": "be1e2fdb7e57ad9c",
    "W3": "1d84d863757719c6",
    "W4": "08dd2ed719f2bb82",
    "W5": "7b1c9d7d77471964",
    "W6": "e898ba05dbc21c45",
    "W7": "6f724828b021afe7",
}
"""Of the bodies of seed 1. A change makes results incomparable with those of earlier commits: never adapt one."""


@pytest.mark.parametrize("name", WORKLOADS)
def test_prompts_have_not_changed(name: str) -> None:
    bodies = [[request.body, request.expected] for request in WORKLOADS[name].build(1)]
    assert hashlib.sha256(json.dumps(bodies).encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", WORKLOADS)
def test_seeds_share_no_prompt(name: str) -> None:
    first, second = ({json.dumps(r.body["messages"]) for r in WORKLOADS[name].build(seed)} for seed in (1, 2))
    assert not first & second


@pytest.mark.parametrize("kind", KINDS)
def test_length_is_forced_in_the_words_of_each_server(kind: str) -> None:
    body = complete(WORKLOADS["W1"].build(1)[0].body, "m", kind, forced=True)
    assert body.get("ignore_eos") == (True if kind in ("generic", "llamacpp", "vllm") else None)
    assert body.get("min_tokens") == (128 if kind == "vllm" else None)
    assert body["temperature"] == 0
    assert body["stream"] is True


def test_forced_calls_are_not_forced_in_length() -> None:
    assert [name for name, workload in WORKLOADS.items() if not workload.forced] == ["W5", "W6"]


def test_an_agents_history_only_grows() -> None:
    requests = WORKLOADS["W7"].build(3)
    for session in range(0, len(requests), TURNS):
        turns = [request.body["messages"] for request in requests[session : session + TURNS]]
        for before, after in itertools.pairwise(turns):
            assert after[: len(before)] == before
            assert [message["role"] for message in after[len(before) :]] == ["assistant", "tool"]
