"""The head read through its screen: the same argmax, of the same bits, as of all logits, and most of them not computed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine.executor import native_executor
from engine.executor.native_weights import LinearPacker
from engine.kernels.cpu.linear import Isa
from engine.kernels.cpu.loader import load
from engine.kv_cache.manager import KVCacheManager
from engine.sampling.sampler import ArgmaxMasks
from engine.sampling_params import SamplingParams
from engine.scheduler.batch import ScheduleBatch, make_row
from tests.engine.executor.driver import Sequences
from tests.engine.executor.native_driver import NativeDriver, load_native
from tests.engine.executor.test_native_executor import Allow, make_req
from tests.engine.kernels.cpu.linear_cases import LEVELS
from tests.engine.models.tiny import make_model, random_tokens, save

VOCAB, HIDDEN = 1003, 256
MOST_ROWS = {Isa.PORTABLE: 0, Isa.AVX2: 16, Isa.AVX512: 4}
"""Rows of one step up to which each level reads a screen first."""
pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")


class AtLevel:
    """The library, whose contexts compute at one instruction-set level."""

    def __init__(self, isa):
        self._lib, self._isa = load(), isa

    def __getattr__(self, name):
        return getattr(self._lib, name)

    def cg_ctx_create(self, threads, _):
        return self._lib.cg_ctx_create(threads, int(self._isa))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model with eight tokens far from the others, as real ones have, and these once more: argmax has to choose
    between equals."""
    model = make_model("qwen3", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN)
    with torch.no_grad():
        model.lm_head.weight[40:48] *= 8
        model.lm_head.weight[700:708] = model.lm_head.weight[40:48]
        model.lm_head.weight[500] = 0.0
    return save(model, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=[(isa, threads) for isa in LEVELS for threads in (1, 3)], ids=str)
def executor(request, path):
    isa, threads = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_executor, "load", lambda: AtLevel(isa))
        made = load_native(path, quantization="int8", threads=threads, pages=128)
    yield made
    made.close()


def both(executor, batch, masks=None):
    """(argmax, its logits' bits) of a step computed whole and through the screen, and how many logits differ."""
    results, logits = [], []
    for argmax_only in (False, True):
        best = np.empty(len(batch.logits_index), np.int32)
        more = {} if masks is None else {"mask": masks.rows, "masked": masks.flags}
        found = executor.model.forward(batch, argmax=best, argmax_only=argmax_only, **more).copy()
        rows = np.flatnonzero(best >= 0)
        results.append((best.tolist(), found[rows, best[rows]].view(np.uint32).tolist()))
        logits.append(found.view(np.uint32))
    return *results, int((logits[0] != logits[1]).sum())


def most_rows(executor):
    return MOST_ROWS[executor._lib.cg_ctx_isa(executor._context.handle)]


def parts_of(executor, batch, masks=None):
    """The rows that want logits, and their masks, as many at a time as a screen is read for."""
    size = most_rows(executor) or 16
    for at in range(0, len(batch.logits_index), size):
        some = slice(at, at + size)
        part = replace(batch, logits_index=batch.logits_index[some])
        yield part, masks and ArgmaxMasks(masks.rows[some], masks.flags[some])


def barring(tokens, rows):
    """Masks of so many rows, in each of which all tokens but these are allowed."""
    bits = np.ones((rows, -(-VOCAB // 32) * 32), bool)
    bits[:, tokens] = False
    return ArgmaxMasks(np.packbits(bits, axis=1, bitorder="little").view(np.int32), np.ones(rows, np.uint8))


def last_of(executor, rows):
    batch = Sequences(NativeDriver(executor)).batch([(str(i), random_tokens(9, seed=i), 0) for i in range(rows)])
    return replace(batch, logits_index=batch.cu_seqlens[1:] - 1)


def rested(executor):
    """After as many steps as the screen pauses behind one that it could not settle."""
    batch = last_of(executor, 1)
    for _ in range(32 if most_rows(executor) else 0):
        executor.model.forward(batch, argmax=np.empty(1, np.int32), argmax_only=True)
    return executor


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 16, 17])
def test_the_argmax_is_that_of_all_logits(executor, rows):
    whole, screened, left_out = both(rested(executor), last_of(executor, rows))
    assert whole == screened
    if rows > most_rows(executor):
        assert left_out == 0, "of many rows all is computed"
    elif rows == 1:
        assert left_out > VOCAB / 4, "so much was not computed"


def test_equal_logits_give_the_lowest_token(executor):
    batch = Sequences(NativeDriver(executor)).batch([("a", random_tokens(48, seed=3), 0)])
    found = set()
    for part in parts_of(executor, batch):
        whole, screened, _ = both(rested(executor), *part)
        assert whole == screened
        found |= set(whole[0])
    assert found & set(range(40, 48))
    assert not found & set(range(700, 708))


def test_where_all_tokens_are_alike_the_head_is_read_whole(path, tmp_path):
    model = make_model("qwen3", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN)
    with torch.no_grad():
        model.lm_head.weight[:] = model.lm_head.weight[:1] * torch.linspace(1.0, 1.001, VOCAB)[:, None]
    executor = load_native(save(model, tmp_path), quantization="int8", threads=2)
    for rows in (1, 2, 1):
        whole, screened, left_out = both(rested(executor), last_of(executor, rows))
        assert whole == screened
        assert left_out == 0
    executor.close()


def test_after_a_step_that_it_could_not_settle_the_screen_pauses(executor):
    rows = most_rows(executor)
    if not rows:
        pytest.skip("plain loops read the head whole")
    rested(executor)
    many = Sequences(NativeDriver(executor)).batch([("a", [500] * rows, 0)])
    alike = barring([*range(40, 48), *range(700, 708)], rows)
    assert both(executor, many, alike)[2] == 0, "without the tokens far from the others no row is settled"
    assert [both(executor, last_of(executor, 1))[2] > 0 for _ in range(40)] == [False] * 32 + [True] * 8


@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.5, 1.0])
def test_under_a_mask(executor, share):
    rng = np.random.default_rng(int(share * 1000))
    batch = Sequences(NativeDriver(executor)).batch([("a", random_tokens(12, seed=8), 0)])
    bits = rng.random((12, -(-VOCAB // 32) * 32)) < share
    masks = ArgmaxMasks(
        np.packbits(bits, axis=1, bitorder="little").view(np.int32), (rng.random(12) < 0.7).astype(np.uint8)
    )
    for part in parts_of(executor, batch, masks):
        whole, screened, _ = both(rested(executor), *part)
        assert whole == screened


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 1e-30])
@pytest.mark.parametrize("place", ["embedding", "head"])
def test_numbers_that_are_not_finite_or_extreme(path, value, place, tmp_path):
    model = make_model("qwen3", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN)
    with torch.no_grad():
        weight = model.model.embed_tokens.weight if place == "embedding" else model.lm_head.weight
        weight[77, 5] = value
    executor = load_native(save(model, tmp_path), quantization="int8", threads=2)
    batch = Sequences(NativeDriver(executor)).batch([("a", [5, 77, 6], 0), ("b", random_tokens(5), 0)])
    for part in parts_of(executor, batch):
        whole, screened, _ = both(rested(executor), *part)
        assert whole == screened
    executor.close()


def test_models_without_a_screen(path):
    for quantization in ("none", "int4"):
        executor = load_native(path, quantization=quantization)
        batch = Sequences(NativeDriver(executor)).batch([("a", random_tokens(3), 0)])
        whole, screened, left_out = both(executor, batch)
        executor.close()
        assert whole == screened
        assert left_out == 0


def step(executor, requests, draft):
    """One decode step of requests with these settings: (argmax_only that the model was given, tokens)."""
    kv = KVCacheManager(executor.num_pages, executor.page_size)
    rows = []
    for index, (settings, grammar) in enumerate(requests):
        prompt, settings = random_tokens(20, seed=index), dict(settings)
        prompt_logprobs = settings.pop("prompt_logprobs", False)
        req = make_req(kv, prompt, params=SamplingParams(**{"temperature": 0.0, **settings}), grammar=grammar)
        req.prompt_logprobs = prompt_logprobs
        rows.append(make_row(req, 20, draft if index == 0 else ()))
    given = []
    forward = executor.model.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor.model, "forward", lambda *a, **k: given.append(k["argmax_only"]) or forward(*a, **k))
        outputs = executor.execute(ScheduleBatch(tuple(rows), executor.page_size)).rows
    assert not [row.error for row in outputs if row.error]
    return given, [row.token_ids for row in outputs]


NEEDS_LOGITS = [
    ({"temperature": 1.0}, None, ()),
    ({"logprobs": True}, None, ()),
    ({"presence_penalty": 0.5}, None, ()),
    ({"repetition_penalty": 1.1}, None, ()),
    ({"logit_bias": {3: 1.0}}, None, ()),
    ({"min_tokens": 2}, None, ()),
    ({"prompt_logprobs": True}, None, ()),
]
NEEDS_NONE = [({}, None, ()), ({}, None, (4, 5)), ({}, Allow({1, 2, 3}), ()), ({}, Allow({1, 2}), (1,))]


def named(value):
    return type(value).__name__ if isinstance(value, Allow) else str(value)


@pytest.mark.parametrize(("settings", "grammar", "draft"), NEEDS_LOGITS + NEEDS_NONE, ids=named)
def test_the_screen_is_used_where_nothing_but_the_argmax_decides(executor, path, settings, grammar, draft):
    """And a request that needs all logits gets them for the whole step: tokens are those of a model without a screen."""
    requests = [(settings, grammar), ({}, None)]
    given, tokens = step(executor, requests, draft)
    assert given == [(settings, grammar, draft) in NEEDS_NONE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LinearPacker, "names", lambda self, names=LinearPacker.names: [n for n in names(self) if n != "screen"]
        )
        patch.setattr(native_executor, "load", lambda: AtLevel(executor._lib.cg_ctx_isa(executor._context.handle)))
        other = load_native(path, quantization="int8", pages=128)
    assert "screen" not in other._linears
    assert step(other, requests, draft)[1] == tokens
    other.close()


def with_head(path, change):
    """An executor whose head's raw rows ``change`` was given."""
    matrix = LinearPacker._matrix

    def changed(self, name):
        found = matrix(self, name)
        if name == "lm_head":
            change(found.data.reshape(found.rows, -1, 34))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LinearPacker, "_matrix", changed)
        return load_native(path, quantization="int8", threads=2)


def set_group(groups, scale, codes):
    groups[..., :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    groups[..., 2:] = np.asarray(codes, np.int8).view(np.uint8)


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan, 65504.0, 8192.0, 6e-8, 0.0, -0.01])
def test_odd_scales_in_a_head_under_a_mask_that_bars_their_tokens(tmp_path, scale):
    """A NaN wins where it is not allowed, too; infinite scales make one of what a screen gives another sign."""
    model = make_model("qwen3", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN)
    with torch.no_grad():
        model.lm_head.weight[32:96] *= 8  # so far above the others that few of these are looked at
    rng = np.random.default_rng(0)
    barred = np.arange(100, 1000, 160)
    codes = rng.integers(-12, 13, (len(barred), 2, 32))

    def change(groups):
        for token, code in zip(barred, codes, strict=True):
            set_group(groups[token, :2], scale, code)

    executor = with_head(save(model, tmp_path), change)
    masks = barring(barred, 1)
    batch = Sequences(NativeDriver(executor)).batch([("a", random_tokens(48, seed=8), 0)])
    for index in range(48):
        whole, screened, _ = both(rested(executor), replace(batch, logits_index=np.array([index], np.int32)), masks)
        assert whole == screened
    executor.close()


@pytest.mark.parametrize("size", [1e32, 1e20, 1.0, 1e-20, 1e-32, 1e-37])
def test_sums_that_overflow_on_the_way_or_vanish(tmp_path, size):
    """Token 9 wins: 120 - 5 a value. In five bits the 5 is an 8, and what is left out on the way may be beyond all numbers."""
    model = make_model("qwen3", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[:] = 0
            layer.mlp.down_proj.weight[:] = 0
        model.model.embed_tokens.weight[:, :64] = 1.0
        model.model.embed_tokens.weight[:, 64:] = 0.0
        model.model.norm.weight[:] = 1.5 * size

    def change(groups):
        set_group(groups[9, 0], 5000.0, [-5] * 32)
        set_group(groups[9, 1], 280.0, [120] * 32)
        set_group(groups[900, :2], 20.0, [100] * 32)

    executor = with_head(save(model, tmp_path), change)
    for rows in (1, 3):
        whole, screened, _ = both(rested(executor), last_of(executor, rows))
        assert whole == screened
        assert set(whole[0]) == {9 if size > 1e-30 else 0}
    executor.close()
