"""What a client gets is the same with drafts, whatever their lengths, and without any."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import pytest

from engine.executor.hash_lm import HashLMExecutor
from engine.messages import GrammarSpec
from engine.sampling.rng import mix64
from engine.sampling.sampler import NOT_ALLOWED
from engine.speculative.drafter import Drafter
from tests.engine.scale import scaled
from tests.engine.scheduler.grammars import ScriptBackend, spec
from tests.engine.scheduler.harness import Harness

LETTERS = {97: 30.0, 98: 30.0}
"""A bias to two letters: much repeats, so that drafts have something to win."""


class BrokenHashLM(HashLMExecutor):
    """Its numbers are not finite after one text in ``1 / share``."""

    share = 0.0

    def _logits(self, digests):
        logits = super()._logits(digests)
        broken = [mix64(int(digest) ^ 0xBAD) < self.share * 2.0**64 for digest in digests]
        logits[np.array(broken)] = np.nan
        return logits


class Watch:
    """A clock by which every step takes another time."""

    def __init__(self, seed: int) -> None:
        self._random, self._now = random.Random(seed), 0.0

    def __call__(self) -> float:
        self._now += self._random.choice([0.0, 0.001, 0.01, 0.01, 0.02, 1.0])
        return self._now


def random_grammar(choose: random.Random) -> GrammarSpec | None:
    parts = ["ab", "ab", "a", "bB", "a b a", ".", ". .", "ab Bb"]
    ends = ["!", "ab", ".", "", "bB"]  # "": nothing is allowed there
    script = [choose.choice(parts) for _ in range(choose.randrange(1, 30))]
    return None if choose.random() < 0.5 else spec(" ".join([*script, choose.choice(ends)]))


def random_request(choose: random.Random) -> tuple[list[int], dict]:
    prompt = [choose.choice(b"abAB") for _ in range(choose.randrange(1, 60))]
    sampling: dict = {"max_tokens": choose.randrange(1, 60), "logit_bias": LETTERS, "grammar": random_grammar(choose)}
    if choose.random() < 0.5:
        sampling |= {"temperature": choose.choice([0.1, 0.5, 1.5]), "seed": choose.randrange(100)}
    if choose.random() < 0.3:
        sampling |= {"logprobs": True, "top_logprobs": choose.randrange(4)}
    if choose.random() < 0.2:
        sampling["frequency_penalty"] = choose.choice([-0.5, 1.0, 2.0])
    if choose.random() < 0.3:
        sampling["stop_token_ids"] = (choose.choice(b"abcB"),)
        sampling["min_tokens"] = min(sampling["max_tokens"], choose.choice([0, 0, 5, 20]))
    if choose.random() < 0.1:
        sampling["ignore_eos"] = True
    if choose.random() < 0.1:
        sampling["prompt_logprobs"] = True
    return prompt, sampling | {"priority": choose.choice([0, 0, 1])}


def answers(seed: int, **config) -> tuple[dict[str, tuple], int]:
    """All that each request's client sees, and how many guesses came true."""
    choose = random.Random(seed)
    pages, page_size = choose.choice([(40, 4), (400, 1), (400, 16)])
    executor = BrokenHashLM(pages, page_size, eos_probability=choose.choice([0.0, 0.02]))
    executor.share = choose.choice([0.0, 0.02])
    chunk = choose.choice([1, 5, 64, 512])
    harness = Harness(executor=executor, grammar=ScriptBackend(), chunked_prefill_size=chunk, **config)
    harness.scheduler._clock = Watch(seed)
    for index in range(8):
        prompt, sampling = random_request(choose)
        harness.add(str(index), prompt, **sampling)
        if choose.random() < 0.5:
            harness.step()
    seen = {
        rid: (
            result.token_ids,
            result.logprobs,
            result.prompt_logprobs,
            result.finish,
            result.prompt_tokens,
            result.completion_tokens,
        )
        for rid, result in harness.run().items()
    }
    return seen, harness.scheduler.stats().accepted_tokens


@cache
def answers_without_drafts(seed: int) -> dict[str, tuple]:
    return answers(seed)[0]


@pytest.mark.parametrize("config", [{"num_draft_tokens": 3}, {"num_draft_tokens": 8, "reads_clock": True}], ids=str)
def test_answers_are_the_same_with_drafts_and_without(config):
    accepted = 0
    for seed in range(scaled(100)):
        drafted, count = answers(seed, **config)
        accepted += count
        assert drafted == answers_without_drafts(seed), f"seed {seed}"
    assert accepted > scaled(100) * 5


def test_what_stood_before_a_fault_is_delivered():
    """A fault behind a guess that came true is met again in a step of its own; the tokens before it are the client's."""
    for drafts in (0, 8):
        harness = Harness(grammar=ScriptBackend(), num_draft_tokens=drafts)
        dead_end = spec("a b a b a b ")
        harness.add("a", b"abababababab", grammar=dead_end, max_tokens=50, logprobs=True)  # logprobs: nothing is forced
        result = harness.run()["a"]
        assert bytes(result.token_ids) == b"ababab"
        assert [detail.token_id for detail in result.logprobs] == result.token_ids
        assert (result.finish.type, result.finish.status) == ("error", 400)
        assert result.finish.message == NOT_ALLOWED
        assert (harness.scheduler.stats().accepted_tokens > 0) == (drafts > 0)


def test_steps_of_prompts_do_not_count_as_what_drafts_cost(monkeypatch):
    """Where logprobs of the prompt are asked for, every token of a prompt's step has logits too."""
    harness = Harness(num_draft_tokens=4, reads_clock=True)
    seen: list[int] = []
    monkeypatch.setattr(harness.scheduler._costs, "observe", lambda num_tokens, seconds: seen.append(num_tokens))
    harness.add("a", range(20), prompt_logprobs=True, max_tokens=3)
    harness.run()
    harness.add("b", [7], max_tokens=1)
    harness.run()
    assert seen == [1, 1]


@pytest.mark.parametrize(
    ("settings", "max_tokens"), [({"max_draft_tokens": 0}, 8), ({}, 2)], ids=["of steps", "answer"]
)
def test_no_guess_is_made_where_there_is_no_room_for_one(monkeypatch, settings, max_tokens):
    asked = []
    monkeypatch.setattr(Drafter, "propose", lambda self, grammar: asked.append(self))
    harness = Harness(num_draft_tokens=4, **settings)
    harness.add("a", [97, 98] * 6, max_tokens=max_tokens)
    assert len(harness.run()["a"].token_ids) == max_tokens
    assert asked == []
