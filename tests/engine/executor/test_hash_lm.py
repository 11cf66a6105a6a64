"""The instrument must react to every fault it is meant to show, or tests on it prove nothing."""

from __future__ import annotations

import numpy as np
import pytest

from engine.executor.hash_lm import HashLMExecutor
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.req import Req
from engine.text.byte_tokenizer import EOS_ID
from tests.engine.scheduler.harness import Harness, alone, prompts

PAGE = 4


def fresh(length: int = 18):
    """A request half way: 18 tokens, 17 of them computed."""
    executor = HashLMExecutor(32, PAGE)
    from engine.kv_cache.manager import KVCacheManager

    kv = KVCacheManager(32, PAGE)
    req = Req("r", [(7 * i) % 256 for i in range(length)], max_len=1000)
    req.sampling = SamplingState(SamplingParams(temperature=0.0, logprobs=True), seed=0)
    req.lease = kv.lease("", length + 1)
    executor.execute(ScheduleBatch((make_row(req, length - 1),), PAGE))
    req.num_computed = length - 1
    return executor, req


def decode(executor: HashLMExecutor, req: Req):
    return executor.execute(ScheduleBatch((make_row(req, 1),), PAGE)).rows[0]


def test_same_tokens_same_output_whatever_the_pages():
    executor, req = fresh()
    want = decode(executor, req)
    executor, req = fresh()
    assert decode(executor, req) == want
    for place, page in enumerate(list(req.lease.pages)):
        executor.copy_page(page, 31 - place)
        req.lease.replace(place, 31 - place)
    assert decode(executor, req) == want


@pytest.mark.parametrize("slot", range(17))
def test_any_changed_entry_changes_the_output(slot):
    executor, req = fresh()
    want = decode(executor, req)
    executor, req = fresh()
    executor._kv[req.lease.pages[slot // PAGE] * PAGE + slot % PAGE] ^= np.uint64(1)
    assert decode(executor, req).logprobs != want.logprobs


@pytest.mark.parametrize("page", range(5))
def test_any_wrong_page_changes_the_output(page):
    executor, req = fresh()
    want = decode(executor, req)
    executor, req = fresh()
    req.lease.replace(page, 30)
    assert decode(executor, req).logprobs != want.logprobs


def test_swapped_pages_change_the_output():
    executor, req = fresh()
    want = decode(executor, req)
    executor, req = fresh()
    first, second = req.lease.pages[:2]
    req.lease.replace(0, second)
    req.lease.replace(1, first)
    assert decode(executor, req).logprobs != want.logprobs


@pytest.mark.parametrize("place", [0, 5, 16, 17])
def test_any_changed_token_changes_the_output(place):
    executor, req = fresh()
    want = decode(executor, req)
    executor, req = fresh()
    executor2 = HashLMExecutor(32, PAGE)
    req.tokens[place] ^= 1
    req.num_computed = 0
    executor2.execute(ScheduleBatch((make_row(req, 17),), PAGE))
    req.num_computed = 17
    assert decode(executor2, req).logprobs != want.logprobs


def test_chunks_and_single_tokens_agree():
    """The vectorised chain equals the chain taken one token at a time, beyond the initial table of powers."""
    prompt = prompts(1, low=299, high=300)[0]
    want = alone(prompt)
    for chunk in (1, 7, 64):
        harness = Harness(chunked_prefill_size=chunk)
        harness.add("a", prompt)
        assert harness.run()["a"].token_ids == want


def test_text_is_printable_and_never_ends_by_itself():
    harness = Harness()
    for index, prompt in enumerate(prompts(20)):
        harness.add(str(index), prompt, max_tokens=50)
    for result in harness.run().values():
        assert result.finish.type == "length"
        assert all(32 <= token < 127 for token in result.token_ids)


def test_eos_probability():
    harness = Harness(eos_probability=0.05)
    for index, prompt in enumerate(prompts(200, high=20)):
        harness.add(str(index), prompt, max_tokens=400)
    results = harness.run()
    lengths = [len(result.token_ids) for result in results.values()]
    assert 14 < sum(lengths) / len(lengths) < 28, "a mean of 20"
    assert all(result.token_ids[-1] == EOS_ID and result.finish.type == "stop" for result in results.values())
