"""Steps launched before they are asked for: the tokens of the reference path, whatever happens in between."""

from __future__ import annotations

import random

import pytest
import torch

from engine.executor.run_ahead import scratch_pages
from engine.kernels.triton.sample import sample_ref
from engine.messages import AbortReq, DecodeParams, TokenizedGenerateReqInput
from engine.platform import transfer
from engine.sampling_params import SamplingParams
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler
from tests.engine.executor.driver import load
from tests.engine.executor.test_cuda_graphs import Replays, graphs, on_kernels
from tests.engine.models.tiny import make_model, random_tokens, save

PAGES = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(
        make_model("qwen3", num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1),
        tmp_path_factory.mktemp("model"),
    )


class Counting:
    """RunAhead's own methods, counted."""

    def __init__(self, ahead) -> None:
        self.answered = self.partly = self.dropped = 0
        take = ahead.take

        def counted(batch):
            found, places = take(batch)
            if found is not None:
                full = len(places) == len(batch.rows)
                self.answered += full
                self.partly += bool(places) and not full
                self.dropped += not places
            return found, places

        ahead.take = counted


def device_path(path, *, scratch: int, rows: int = 4, pages: int = PAGES, plain: bool = False):
    """As on a GPU: ``pages`` for the scheduler and ``scratch`` more. ``plain``: sampling by the kernel's reference,
    which is faster than its interpreter."""
    executor = on_kernels(path, "vllm_flash_attn", pages=pages + scratch)
    executor.num_pages = pages
    recorder = Replays()
    steps = executor._device_steps = executor.device_steps(graphs(executor, rows, recorder))
    if plain:
        steps._sampler._kernel = steps.ahead._sampler._kernel = sample_ref
    return executor, recorder, Counting(executor._device_steps.ahead)


def request(index: int, rng: random.Random) -> TokenizedGenerateReqInput:
    kinds = (
        {"temperature": 0.0},
        {"temperature": 0.9, "top_p": 0.9},
        {"temperature": 1.3, "top_k": 20},
        {"temperature": 0.7, "min_p": 0.05, "stop_token_ids": (7, 8, 9, 50, 60, 70, 80, 90)},
        {"temperature": 0.8, "min_tokens": 4, "stop_token_ids": tuple(range(0, 199, 3))},
    )
    sampling = SamplingParams(max_tokens=rng.randint(1, 24), ignore_eos=True, seed=index, **kinds[index % len(kinds)])
    ids = tuple(random_tokens(rng.choice((1, 5, 15, 16, 17, 40)), seed=index))
    return TokenizedGenerateReqInput(rid=f"r{index}", input_ids=ids, sampling=sampling, decode=DecodeParams())


def serve(executor, seed: int, *, count: int = 10, drafts: int = 0) -> dict[str, tuple[int, ...]]:
    """Arrivals and aborts at random steps, stops, lengths; pages run short. Output of what was not aborted."""
    rng = random.Random(seed)
    settings = SchedulerConfig(
        max_running_requests=4, chunked_prefill_size=24, max_model_len=80, num_draft_tokens=drafts, strict=True
    )
    scheduler = Scheduler(settings, executor, random_seed=lambda: 5)
    arrivals = sorted((rng.randint(0, 60), index) for index in range(count))
    aborts = {f"r{index}" for index in range(count) if rng.random() < 0.2}
    out: dict[str, tuple[int, ...]] = {}
    step = 0
    while arrivals or scheduler.has_work():
        while arrivals and arrivals[0][0] <= step:
            index = arrivals.pop(0)[1]
            scheduler.add(request(index, random.Random(index)))
        for rid in aborts:
            if len(out.get(rid, ())) > 3:
                scheduler.add(AbortReq(rid=rid))
        for message in scheduler.step():
            for row in message.rows:
                assert row.finish_reason is None or row.finish_reason.type != "error", row.finish_reason
                out[row.rid] = (*out.get(row.rid, ()), *row.token_ids)
        step += 1
    return {rid: tokens for rid, tokens in out.items() if rid not in aborts}


@pytest.mark.parametrize("scratch", [0, 1, 4])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_tokens_of_the_reference_path(path, seed, scratch):
    expected = serve(load(path, pages=PAGES), seed)
    executor, _, counts = device_path(path, scratch=scratch, plain=True)
    assert serve(executor, seed) == expected
    assert counts.answered > 5


@pytest.mark.parametrize("seed", [3, 4])
def test_with_few_pages_requests_are_preempted(path, seed):
    """Pages change hands while steps are under way that write into them."""
    expected = serve(load(path, pages=7), seed)
    executor, _, counts = device_path(path, scratch=4, pages=7, plain=True)
    assert serve(executor, seed) == expected
    assert counts.answered > 0


def test_drafts_make_it_pause(path):
    expected = serve(load(path, pages=PAGES), 5, drafts=3)
    executor, _, counts = device_path(path, scratch=4, plain=True)
    assert serve(executor, 5, drafts=3) == expected
    assert counts.dropped + counts.partly < 15


def decode_only(executor, count: int = 3, tokens: int = 30, **sampling) -> dict[str, tuple[int, ...]]:
    settings = SchedulerConfig(
        max_running_requests=max(4, count), chunked_prefill_size=128, max_model_len=80, strict=True
    )
    scheduler = Scheduler(settings, executor, random_seed=lambda: 5)
    for index in range(count):
        params = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=index, **{"temperature": 0.8, **sampling})
        ids = tuple(random_tokens(9 + 3 * index, seed=index))
        scheduler.add(TokenizedGenerateReqInput(rid=f"r{index}", input_ids=ids, sampling=params, decode=DecodeParams()))
    out: dict[str, tuple[int, ...]] = {}
    while scheduler.has_work():
        for message in scheduler.step():
            for row in message.rows:
                out[row.rid] = (*out.get(row.rid, ()), *row.token_ids)
    return out


def test_every_step_but_the_first_is_under_way_when_it_is_asked_for(path):
    """All rows cross page borders, each in its own step, and write there before the page is theirs."""
    expected = decode_only(load(path, pages=PAGES))
    executor, recorder, counts = device_path(path, scratch=4)
    assert decode_only(executor) == expected
    assert (counts.answered, counts.partly, counts.dropped) == (29, 0, 0)
    assert recorder.replayed == 29, "nothing was computed twice"


def test_a_step_is_launched_before_the_tokens_of_the_last_one_are_waited_for(path, monkeypatch):
    executor, recorder, _ = device_path(path, scratch=4)
    array = transfer.Download.array

    def waited(self):
        recorder.log.append("wait")
        return array(self)

    monkeypatch.setattr(transfer.Download, "array", waited)
    decode_only(executor, count=1, tokens=6)
    order = [kind for kind, before in zip(recorder.log, ["", *recorder.log], strict=False) if kind != before]
    assert order[:8] == ["replay", "wait"] * 4


def test_a_row_that_fails_takes_nobody_along(path):
    """A NaN: its token, -1, is never looked up, and the others go on."""
    expected = decode_only(load(path, pages=PAGES))
    executor, _, _ = device_path(path, scratch=4)
    run, broken = executor._device_steps._graphs.run, []

    def damaged(batch, ids=None):
        logits = run(batch, ids)
        assert ids is None or int(ids.min()) >= 0
        if len(batch.seq_lens) == 3 and int(batch.seq_lens[1]) == 20:
            logits[1, 5] = float("nan")
            broken.append(1)
        return logits

    executor._device_steps._graphs.run = damaged
    got = decode_only(executor)
    assert broken
    assert got["r0"] == expected["r0"]
    assert got["r2"] == expected["r2"]
    assert got["r1"] == expected["r1"][: len(got["r1"])] != expected["r1"]


def test_requests_that_the_host_samples_are_not_run_ahead(path):
    for sampling in ({"logprobs": True}, {"presence_penalty": 0.4}, {"logit_bias": {3: 1.0}}, {"min_tokens": 30}):
        executor, _, counts = device_path(path, scratch=4)
        assert decode_only(executor, **sampling) == decode_only(load(path, pages=PAGES), **sampling)
        assert counts.answered == 0


def test_more_logits_than_memory_was_kept_for_come_in_pieces(path):
    expected = decode_only(load(path, pages=PAGES), tokens=4)
    executor, _, _ = device_path(path, scratch=4)
    executor._device_steps._max_logits = 2
    sizes = []
    compute = executor.compute_logits
    executor.compute_logits = lambda hidden: sizes.append(len(hidden)) or compute(hidden)
    assert decode_only(executor, tokens=4) == expected
    assert max(sizes) == 2
    assert len(sizes) >= 2


def test_slots_move_in_every_layer(path):
    pool = load(path, pages=4)._pool
    generator = torch.Generator().manual_seed(0)
    for part in (pool.keys, pool.values):
        part.copy_(torch.randn(part.shape, generator=generator))
    before = pool.keys.clone(), pool.values.clone()
    pool.copy_slots(torch.tensor([3, 40], dtype=torch.int32), torch.tensor([17, 0], dtype=torch.int32))
    for part, old in zip((pool.keys, pool.values), before, strict=True):
        assert torch.equal(part[:, [17, 0]], old[:, [3, 40]])
        others = [slot for slot in range(64) if slot not in (17, 0)]
        assert torch.equal(part[:, others], old[:, others])


def test_warming_up_runs_every_size_once(path):
    """Sizes by which kernels are tuned, never more than there are pages; nothing but free pages is written."""
    executor = load(path, pages=5)
    sizes = []
    executor._run_largest = sizes.append
    for limit in (100, 1, 64, 48):
        executor._warm_up(limit)
    assert sizes == [2, 4, 8, 16, 32, 64, 80, 2, 4, 8, 16, 32, 64, 2, 4, 8, 16, 32, 48]
    executor = load(path, pages=5)
    executor._warm_up(100)


def test_pages_of_its_own_are_few():
    assert scratch_pages(10_000, 64) == 64
    assert scratch_pages(640, 64) == 10
    assert scratch_pages(3, 64) == 1
