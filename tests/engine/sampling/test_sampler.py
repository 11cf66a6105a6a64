from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest

from engine.grammar.interface import GrammarError
from engine.messages import TokenLogprob
from engine.sampling.sampler import MIN_LOGPROB, NOT_ALLOWED, Sampler
from engine.sampling.state import SamplingState
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from engine.scheduler.req import Req

V = 600
EOS = 599


def request(prompt=(1, 2, 3), output=(), grammar=None, seed=1, **params) -> Req:
    req = Req("r", list(prompt), max_len=10_000)
    req.sampling = SamplingState(SamplingParams(**params), seed=seed, eos=(EOS,), prompt=prompt)
    for token in output:
        req.tokens.append(token)
        req.sampling.observe(token)
    req.grammar = grammar
    req.num_computed = len(req.tokens) - 1
    return req


def batch_of(*reqs: Req, drafts=()) -> ScheduleBatch:
    drafts = [*drafts, *[()] * (len(reqs) - len(drafts))]
    return ScheduleBatch(tuple(make_row(req, 1, tuple(draft)) for req, draft in zip(reqs, drafts, strict=True)), 16)


def logits_for(count: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, V)) * 3).astype(np.float32)


def sample_one(req: Req, logits: np.ndarray):
    return Sampler(V).sample(logits, batch_of(req))[0]


class Allow:
    """A grammar that allows a fixed set of tokens at every position."""

    terminated = False

    def __init__(self, *allowed: int, everything: bool = False) -> None:
        self.allowed = set(allowed)
        self.everything = everything
        self.accepted: list[int] = []

    def fill_mask(self, mask) -> bool:
        if self.everything:
            return False
        mask[:] = 0
        for token in self.allowed:
            mask[token // 32] |= np.int32(np.uint32(1 << (token % 32)).astype(np.int32))
        return True

    def accept(self, token: int) -> bool:
        if not self.everything and token not in self.allowed:
            return False
        self.accepted.append(token)
        return True

    def copy(self) -> Allow:
        return copy.deepcopy(self)

    def forced_tokens(self) -> list[int]:
        return []


def test_greedy_is_argmax_with_the_first_of_equals():
    logits = logits_for(1)
    logits[0, [40, 400]] = 99.0
    assert sample_one(request(temperature=0.0), logits).token_ids == (40,)
    assert sample_one(request(temperature=1e-6), logits).token_ids == (40,)
    assert sample_one(request(temperature=1.0, top_k=1), logits).token_ids == (40,)


def test_best_from_the_executor_is_used_and_checked():
    logits = logits_for(2)
    reqs = [request(temperature=0.0), request(temperature=0.0)]
    outs = Sampler(V).sample(logits, batch_of(*reqs), best=logits.argmax(axis=1))
    assert [out.token_ids[0] for out in outs] == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.0, "logprobs": True}])
def test_a_row_that_is_not_finite_fails_alone(bad, params):
    logits = logits_for(3)
    logits[1, :] = bad if bad == -np.inf else logits[1]
    logits[1, 77] = bad
    outs = Sampler(V).sample(logits, batch_of(*(request(**params) for _ in range(3))))
    assert outs[1].error
    assert not outs[1].token_ids
    for index in (0, 2):
        assert outs[index] == sample_one(request(**params), logits[index : index + 1])


def test_input_logits_are_not_changed():
    logits = logits_for(1)
    before = logits.copy()
    sample_one(request(output=(5,), temperature=1.0, frequency_penalty=1.0, logit_bias={3: 5.0}, min_tokens=9), logits)
    np.testing.assert_array_equal(logits, before)


def some_tokens(count: int, seed: int) -> tuple[int, ...]:
    return tuple(np.random.default_rng(seed).integers(0, V, count).tolist())


@pytest.mark.parametrize(
    ("prompt", "output"),
    [
        ((1, 2, 2, 3), (2, 9, 9, 9)),
        ((), (0, V - 1, 0)),
        ((0, V - 1), ()),
        (some_tokens(500, 1), some_tokens(300, 2)),
        (some_tokens(10, 3), some_tokens(300, 4)),
    ],
)
def test_penalties_against_the_plain_formula(prompt, output):
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.3)
    state = SamplingState(params, seed=0, prompt=prompt)
    for token in output:
        state.observe(token)
    row = logits_for(1, 4)[0]
    want = row.astype(np.float64)
    for token in {*prompt, *output}:
        want[token] = want[token] / 1.3 if want[token] > 0 else want[token] * 1.3
        count = output.count(token)
        want[token] -= 0.25 * count + 0.5 * (count > 0)
    state.modify(row, len(output))
    np.testing.assert_allclose(row, want, rtol=1e-5)


def test_many_distinct_tokens_are_counted():
    state = SamplingState(SamplingParams(frequency_penalty=1.0), seed=0)
    for token in itertools.chain(range(V), range(V)):
        state.observe(token)
    row = np.zeros(V, np.float32)
    state.modify(row, 2 * V)
    assert (row == -2.0).all()


def test_logit_bias_can_force_and_forbid():
    logits = logits_for(1)
    best = int(logits.argmax())
    assert sample_one(request(temperature=0.0, logit_bias={7: 100.0}), logits).token_ids == (7,)
    assert sample_one(request(temperature=0.0, logit_bias={best: -100.0}), logits).token_ids != (best,)


def test_min_tokens_masks_every_stop_id_until_reached():
    logits = logits_for(1)
    logits[0, EOS], logits[0, 50] = 90.0, 80.0
    params = {"temperature": 0.0, "stop_token_ids": (50,), "min_tokens": 2}
    third = int(np.argsort(-logits[0])[2])
    assert sample_one(request(**params), logits).token_ids == (third,)
    assert sample_one(request(output=(8,), **params), logits).token_ids == (third,)
    assert sample_one(request(output=(8, 9), **params), logits).token_ids == (EOS,)


def test_grammar_mask_holds_for_greedy_and_sampled_rows():
    logits = logits_for(1)
    allowed = (3, 31, 32, 63, 599)
    best = max(allowed, key=lambda token: logits[0, token])
    assert sample_one(request(temperature=0.0, grammar=Allow(*allowed)), logits).token_ids == (best,)
    for seed in range(50):
        out = sample_one(request(temperature=2.0, seed=seed, grammar=Allow(*allowed)), logits)
        assert out.token_ids[0] in allowed
    assert sample_one(request(temperature=0.0, grammar=Allow(everything=True)), logits).token_ids == (
        int(logits.argmax()),
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_at_its_end_outranks_min_tokens(temperature):
    """Where it leaves more than the end, the end waits; where it leaves nothing else, waiting would be an error."""
    logits = logits_for(1)
    logits[0, EOS] = 50.0
    for allowed, token in (((EOS,), EOS), ((EOS, 7), 7)):
        asked = request(temperature=temperature, grammar=Allow(*allowed), min_tokens=20, logit_bias={7: 1.0})
        assert sample_one(asked, logits).token_ids == (token,)


def test_a_grammar_that_allows_nothing_is_that_rows_error():
    outs = Sampler(V).sample(
        logits_for(2), batch_of(request(temperature=1.0, grammar=Allow()), request(temperature=0.0))
    )
    assert (outs[0].error, outs[0].error_status) == (NOT_ALLOWED, 400)
    assert outs[1].token_ids
    (greedy,) = Sampler(V).sample(logits_for(1), batch_of(request(temperature=0.0, grammar=Allow())))
    assert (greedy.error, greedy.error_status) == (NOT_ALLOWED, 400)


@pytest.mark.parametrize("method", ["fill_mask", "accept"])
def test_a_grammar_that_cannot_be_followed_is_the_requests_fault(method, caplog):
    grammar = Allow(5)

    def give_up(*_):
        raise GrammarError("The grammar became too complex.")

    setattr(grammar, method, give_up)
    (out,) = Sampler(V).sample(logits_for(1), batch_of(request(temperature=0.0, grammar=grammar)))
    assert (out.error, out.error_status) == ("The grammar became too complex.", 400)
    assert not caplog.text


@pytest.mark.parametrize("method", ["fill_mask", "accept"])
def test_a_grammar_that_raises_is_that_rows_error(method, caplog):
    grammar = Allow(5)

    def explode(*_):
        raise RuntimeError("secret detail")

    setattr(grammar, method, explode)
    outs = Sampler(V).sample(
        logits_for(2), batch_of(request(temperature=0.0, grammar=grammar), request(temperature=0.0))
    )
    assert outs[0].error_status == 500
    assert "secret" not in outs[0].error
    assert outs[1].token_ids
    assert "sampling failed" in caplog.text


def test_prepared_masks_give_the_same_tokens():
    logits = logits_for(1)
    outs = []
    for prepared in (False, True):
        req = request(temperature=1.0, seed=3, grammar=Allow(3, 4, 5))
        batch = batch_of(req)
        sampler = Sampler(V)
        if prepared:
            sampler.prepare(batch)
        assert (req.sampling.prepared is False) != prepared
        outs.append(sampler.sample(logits, batch)[0])
        assert req.sampling.prepared is False, "a mask serves once"
    assert outs[0] == outs[1]
    assert outs[0].token_ids[0] in (3, 4, 5)


def test_result_depends_on_no_neighbour():
    """N8's kind: the same row, seed and position, alone or anywhere in a batch of rows of every sort."""
    kinds = [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.2, "top_k": 30, "min_p": 0.01},
        {"temperature": 1.0, "presence_penalty": 1.0, "logprobs": True, "top_logprobs": 4},
        {"temperature": 1.0, "logit_bias": {4: 3.0}, "repetition_penalty": 1.2},
    ]
    logits = logits_for(len(kinds) * 5, seed=8)
    reqs = [request(seed=i, **kinds[i % len(kinds)]) for i in range(len(logits))]
    together = Sampler(V).sample(logits, batch_of(*reqs))
    for index in range(len(reqs)):
        again = request(seed=index, **kinds[index % len(kinds)])
        assert together[index] == sample_one(again, logits[index : index + 1])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_never_change_what_is_sampled(temperature):
    """Position by position without drafts, then with right, half-right and wrong ones over the same logits."""
    block = np.repeat(logits_for(1, seed=5), 6, axis=0)  # so that only the penalty moves it on
    params = {"temperature": temperature, "frequency_penalty": 2.0, "logprobs": True, "top_logprobs": 2, "seed": 11}
    plain: list[int] = []
    details: list[TokenLogprob] = []
    for index in range(6):
        out = sample_one(request(output=plain, **params), block[index : index + 1])
        plain += out.token_ids
        details += out.logprobs
    for right in range(6):
        draft = [*plain[:right], *((token + 1) % V for token in plain[right:5])]
        out = Sampler(V).sample(block, batch_of(request(**params), drafts=[draft]))[0]
        assert out.token_ids == tuple(plain[: right + 1])
        assert out.logprobs == tuple(details[: right + 1])
    assert temperature > 0 or len(set(plain)) > 1


def test_the_walk_ends_at_a_stop_token():
    block = logits_for(3)
    block[0, EOS] = 99.0
    grammar = Allow(EOS)
    out = Sampler(V).sample(block, batch_of(request(temperature=0.0, grammar=grammar), drafts=[(EOS, 4)]))[0]
    assert out.token_ids == (EOS,)


def test_where_a_mask_behind_a_guess_is_missing_the_unmasked_best_is_not_taken():
    class Copied(Allow):
        """Its copies make one mask."""

        masks_left = 99

        def fill_mask(self, mask):
            self.masks_left -= 1
            if self.masks_left < 0:
                raise MemoryError
            return super().fill_mask(mask)

        def copy(self):
            twin = super().copy()
            twin.masks_left = 1
            return twin

    block = logits_for(2)
    block[0, 1] = block[1, 2] = 50.0
    block[1, EOS] = 99.0
    sampler, batch = Sampler(V), batch_of(request(temperature=0.0, grammar=Copied(1, 2)), drafts=[(1,)])
    masks = sampler.masks(batch)
    assert sampler.sample(block, batch, np.array([1, EOS]), masks)[0].token_ids == (1, 2)
    assert not sampler.wants_argmax_only(batch, masks)


def test_logprobs_are_of_the_unmodified_distribution():
    logits = logits_for(1, 2)
    req = request(temperature=0.3, logit_bias={5: 50.0}, logprobs=True, top_logprobs=20)
    [detail] = sample_one(req, logits).logprobs
    exact = logits[0].astype(np.float64)
    exact -= exact.max() + math.log(np.exp(exact - exact.max()).sum())
    assert detail.token_id == 5
    assert detail.logprob == pytest.approx(exact[5], abs=1e-5)
    assert [top.token_id for top in detail.top] == np.argsort(-exact)[:20].tolist()
    assert [top.logprob for top in detail.top] == pytest.approx(np.sort(exact)[::-1][:20].tolist(), abs=1e-5)
    assert sum(math.exp(top.logprob) for top in detail.top) <= 1 + 1e-6


def test_logprobs_are_finite():
    row = np.full(V, -np.inf, np.float32)
    row[4] = 3.0
    detail = Sampler(V).token_logprob(row, 9, 5)
    assert detail.logprob == MIN_LOGPROB
    assert all(math.isfinite(top.logprob) and top.logprob <= 0.0 for top in detail.top)
    assert detail.top[0].logprob == 0.0


def test_prompt_logprobs_cover_the_tokens_after_each_position():
    prompt = tuple(range(10, 20))
    req = Req("r", list(prompt), max_len=100)
    req.sampling = SamplingState(SamplingParams(temperature=0.0, logprobs=True), seed=0, prompt=prompt)
    req.prompt_logprobs = True
    block = logits_for(10)
    sampler, details = Sampler(V), []
    for count in (4, 6):
        batch = ScheduleBatch((make_row(req, count),), 16)
        out = sampler.sample(block[req.num_computed : req.num_computed + count], batch)[0]
        details += out.prompt_logprobs
        req.num_computed += count
    assert [detail.token_id for detail in details] == list(prompt[1:])
    assert out.token_ids == (int(block[9].argmax()),)
    assert details[5] == sampler.token_logprob(block[5], 16, 0)
