"""A head that guesses right, wrong or not at all changes how many steps an answer takes, never a token of it."""

from __future__ import annotations

import copy
import json
import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from engine.executor import native_executor
from engine.executor.draft_head import SUFFIX, DraftHead, DraftHeadWeights, fingerprint
from engine.executor.native_executor import DRAFT_HEADS, NativeExecutor
from engine.executor.native_weights import LinearPacker
from engine.kernels.cpu.linear import Context, Format, Weight, embed_rows, quantize_weights
from engine.kernels.cpu.loader import load
from engine.messages import DecodeParams, GrammarSpec, TokenizedGenerateReqInput
from engine.sampling_params import SamplingParams
from engine.scheduler.policy import SchedulerConfig
from engine.scheduler.scheduler import Scheduler
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.driver import Sequences
from tests.engine.executor.native_driver import NativeDriver, load_native
from tests.engine.kernels.cpu.linear_cases import LEVELS
from tests.engine.models.tiny import make_model, random_tokens, save

VOCAB, HIDDEN, INNER = 203, 64, 96
pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(make_model("qwen2", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN), tmp_path_factory.mktemp("model"))


def random_weights(seed, tokens=range(0, VOCAB, 2), hidden=HIDDEN, fmt=Format.Q8_0):
    rng = np.random.default_rng(seed)

    def weight(rows, columns):
        values = rng.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        return Weight(fmt, rows, columns, quantize_weights(fmt, values, Format.F32))

    shapes = ((INNER, 2 * hidden), (INNER, 2 * hidden), (hidden, INNER))
    return DraftHeadWeights(np.array(tokens, np.int32), *(weight(*shape) for shape in shapes))


def values(weight):
    return embed_rows(weight.fmt, weight.raw, weight.n, weight.k, np.arange(weight.n, dtype=np.int32))


def name_of(path):
    checkpoint = open_checkpoint(path)
    return fingerprint(checkpoint.read("model.norm.weight"), VOCAB, checkpoint.config.num_layers) + SUFFIX


def load_with(path, home, **settings):
    config = native_executor.EngineConfig(
        model=str(path), threads=1, kv_pages=64, quantization="int8", kv_cache_dtype="float32", **settings
    )
    return NativeExecutor(config, open_checkpoint(path), cache_home=lambda: home)


@pytest.mark.parametrize("fmt", [Format.Q8_0, Format.Q4_0, Format.Q4_1])
def test_guesses_are_those_of_the_network(path, fmt):
    weights = random_weights(1, fmt=fmt)
    checkpoint = open_checkpoint(path)
    packer = LinearPacker(load(), checkpoint, "int8")
    embedding = native_executor._weight(packer.embedding())
    context = Context(1)
    draft_head = DraftHead(
        context, weights, embedding, lambda tokens: native_executor._weight(packer.head_rows(tokens))
    )
    rng = np.random.default_rng(2)
    states, tokens = rng.normal(size=(5, HIDDEN)).astype(np.float32), rng.integers(0, VOCAB, 5).astype(np.int32)
    guesses = draft_head.guess(states, tokens)
    gate, up, down = (torch.from_numpy(values(weight)) for weight in (weights.gate, weights.up, weights.down))
    embeddings, logit_rows = (
        torch.from_numpy(values(embedding)),
        torch.from_numpy(checkpoint.read("lm_head.weight")[weights.tokens]),
    )
    for row, (guess, probability) in enumerate(guesses):
        x = torch.cat([torch.from_numpy(states[row]), embeddings[tokens[row]]])
        following = down @ (torch.nn.functional.silu(gate @ x) * (up @ x))
        expected = torch.softmax(logit_rows @ following, 0)
        place = weights.tokens.tolist().index(guess)
        assert expected[place] > 0.97 * expected.max()  # activations are rounded to eight bits on the way
        assert probability == pytest.approx(float(expected[place]), rel=0.05)
    draft_head.close()
    context.close()


def test_states_are_those_that_gave_the_logits(path):
    executor = load_native(path, quantization="int8")
    batch = Sequences(NativeDriver(executor)).batch([("a", random_tokens(30), 0), ("b", random_tokens(9), 0)])
    for index in (np.arange(39), np.array([29, 38]), np.array([3, 17, 30])):
        wanted = replace(batch, logits_index=index.astype(np.int32))
        hidden = np.empty((39, HIDDEN), np.float32)
        executor.model.forward(wanted, hidden=hidden)
        states = np.full((len(index), HIDDEN), np.nan, np.float32)
        logits = executor.model.forward(wanted, states=states, argmax=np.empty(len(index), np.int32)).copy()
        assert np.array_equal(states, hidden[index])
        assert np.array_equal(executor.model.head(states), logits)
    executor.close()


class Perfect:
    """Guesses what the model is known to write, ``wrong`` of them wrong."""

    def __init__(self, answers, wrong=0.0):
        self.answers, self.wrong, self.rng = answers, wrong, np.random.default_rng(3)
        self.asked = 0

    def guess(self, states, tokens):
        self.asked += len(tokens)
        assert len(states) == len(tokens)
        assert np.isfinite(states).all()
        return [self._next(token) for token in tokens.tolist()]

    def _next(self, token):
        return self.answers.get(token, 0) if self.rng.random() >= self.wrong else 1, 0.9

    def close(self):
        pass


class Thirds:
    """Allows at each place a third of the tokens, another one than before."""

    terminated = False

    def __init__(self):
        self.place = 0

    def fill_mask(self, mask):
        bits = np.zeros(len(mask) * 32, bool)
        bits[self.place % 3 : VOCAB : 3] = True
        mask[:] = np.packbits(bits, bitorder="little").view(np.int32)
        return True

    def accept(self, token):
        allowed = token % 3 == self.place % 3
        self.place += allowed
        return allowed

    def copy(self):
        return copy.copy(self)

    def forced_tokens(self):
        return []


class ThirdsBackend:
    def compile(self, spec):
        return spec

    def is_compiled(self, spec):
        return True

    def matcher(self, compiled):
        return Thirds()


def generate(executor, draft_head, *, prompts, drafts=4, grammar=None, **sampling):
    executor._draft_head = draft_head
    config = SchedulerConfig(
        max_running_requests=8, chunked_prefill_size=32, max_model_len=200, num_draft_tokens=drafts, strict=True
    )
    scheduler = Scheduler(config, executor, grammar=ThirdsBackend())
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=40, **sampling)
        scheduler.add(
            TokenizedGenerateReqInput(
                rid=str(index), input_ids=tuple(prompt), sampling=params, decode=DecodeParams(), grammar=grammar
            )
        )
    written = {str(index): [] for index in range(len(prompts))}
    while scheduler.has_work():
        for output in scheduler.step():
            for row in getattr(output, "rows", ()):
                assert row.finish_reason is None or row.finish_reason.type == "length"
                written[row.rid] += row.token_ids
    assert scheduler.kv.check() == []
    return written, scheduler


@pytest.mark.parametrize("wrong", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_answers_are_the_same_with_and_without(path, wrong, sampling):
    executor = load_native(path, quantization="int8", pages=128)
    prompts = [random_tokens(9, seed=seed) for seed in range(3)]
    without, plain = generate(executor, None, prompts=prompts, drafts=0, **sampling)
    following = {}
    for answer in without.values():
        following.update(pairwise(answer))
    head = Perfect(following, wrong)
    answers, drafted = generate(executor, head, prompts=prompts, **sampling)
    assert answers == without
    assert head.asked > 20
    if wrong == 0.0:
        assert drafted.num_steps < plain.num_steps
    executor._draft_head = None
    executor.close()


@pytest.mark.parametrize("wrong", [0.0, 0.6])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_answers_under_a_grammar_are_the_same(path, wrong, sampling):
    executor = load_native(path, quantization="int8", pages=128)
    prompts = [random_tokens(9, seed=seed) for seed in range(3)]
    thirds = GrammarSpec(kind="regex", source="thirds")
    without, plain = generate(executor, None, prompts=prompts, drafts=0, grammar=thirds, **sampling)
    assert all(token % 3 == place % 3 for answer in without.values() for place, token in enumerate(answer))
    following = {}
    for answer in without.values():
        following.update(pairwise(answer))
    answers, drafted = generate(executor, Perfect(following, wrong), prompts=prompts, grammar=thirds, **sampling)
    assert answers == without
    if wrong == 0.0:
        assert drafted.num_steps < plain.num_steps
    executor._draft_head = None
    executor.close()


def test_many_rows_are_not_guessed_for(path):
    executor = load_native(path, quantization="int8", pages=128)
    prompts = [random_tokens(9, seed=seed) for seed in range(8)]
    head = Perfect({})
    executor._draft_head = head
    config = SchedulerConfig(
        max_running_requests=8, chunked_prefill_size=256, max_model_len=200, num_draft_tokens=4, strict=True
    )
    scheduler = Scheduler(config, executor)
    for index, prompt in enumerate(prompts):
        params = SamplingParams(max_tokens=20, temperature=0.0)
        scheduler.add(
            TokenizedGenerateReqInput(rid=str(index), input_ids=tuple(prompt), sampling=params, decode=DecodeParams())
        )
    while scheduler.has_work():
        scheduler.step()
    assert head.asked <= 4, "but for those that came first and were alone"
    executor._draft_head = None
    executor.close()


def test_one_that_is_never_worth_it_is_asked_no_more(path):
    executor = load_native(path, quantization="int8", pages=128)

    class Timid(Perfect):
        def _next(self, token):
            return 1, 0.001

    head = Timid({})
    generate(executor, head, prompts=[random_tokens(9, seed=seed) for seed in range(3)] * 2, temperature=0.0)
    asked = head.asked
    assert 0 < asked <= 4 * (32 + 2) + 6
    executor._draft_head = None
    executor.close()


def test_a_head_that_fails_costs_its_guesses_alone(path, caplog):
    executor = load_native(path, quantization="int8", pages=128)
    prompts = [random_tokens(9, seed=seed) for seed in range(3)]
    without, _ = generate(executor, None, prompts=prompts, drafts=0, temperature=0.0)

    class Failing(Perfect):
        def guess(self, states, tokens):
            if self.asked > 10:
                raise MemoryError
            return super().guess(states, tokens)

    answers, _ = generate(executor, Failing({}), prompts=prompts, temperature=0.0)
    assert answers == without
    assert executor._draft_head is None
    assert caplog.text.count("the draft head failed") == 1
    executor.close()


def test_a_file_is_found_by_the_model_and_only_where_heads_are_wanted(path, tmp_path):
    file = tmp_path / DRAFT_HEADS / name_of(path)
    file.parent.mkdir()
    random_weights(1).save(file)
    for settings, expected in (({}, True), ({"speculative": "ngram"}, False), ({"num_draft_tokens": 0}, False)):
        executor = load_with(path, tmp_path, **settings)
        assert (executor._draft_head is not None) == expected
        executor.close()
    executor = load_with(path, tmp_path / "elsewhere")
    assert executor._draft_head is None
    executor.close()


def short(file, weights):
    weights.save(file)
    file.write_bytes(file.read_bytes()[:-9])


def of_type(dtype, size, name):
    """A file in which tensor ``name`` is said to be of a type of ``size`` bytes; its bytes are the same."""

    def write(file, weights):
        weights.save(file)
        data = file.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:end])
        first, last = header[name]["data_offsets"]
        header[name] |= {"dtype": dtype, "shape": [(last - first) // size]}
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + data[end:])

    return write


def with_tokens(change):
    return lambda file, weights: replace(weights, tokens=change(weights.tokens)).save(file)


BROKEN = {
    "weights of a type that numpy has not": of_type("BF16", 2, "gate"),
    "weights of another type that numpy has not": of_type("F8_E4M3", 1, "down"),
    "tokens of a type that numpy has not": of_type("BF16", 2, "tokens"),
    "tokens that are no whole numbers": with_tokens(lambda tokens: tokens.astype(np.float32)),
    "tokens in a column": with_tokens(lambda tokens: tokens[:, None]),
    "tokens in a row": with_tokens(lambda tokens: tokens[None]),
    "more tokens than there are": with_tokens(lambda tokens: np.tile(tokens, 3)),
    "empty": lambda file, weights: file.write_bytes(b""),
    "text": lambda file, weights: file.write_text("no tensors"),
    "cut short": short,
    "of another model": lambda file, weights: random_weights(1, hidden=32).save(file),
    "tokens that do not exist": lambda file, weights: random_weights(1, tokens=[0, VOCAB]).save(file),
    "negative tokens": lambda file, weights: random_weights(1, tokens=[-1, 3]).save(file),
    "no tokens": lambda file, weights: random_weights(1, tokens=[]).save(file),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_a_warning_and_no_head(path, tmp_path, fault, caplog):
    file = tmp_path / DRAFT_HEADS / name_of(path)
    file.parent.mkdir()
    BROKEN[fault](file, random_weights(1))
    with caplog.at_level(logging.WARNING):
        executor = load_with(path, tmp_path)
    assert executor._draft_head is None
    assert "is not used" in caplog.text
    executor.close()


def test_a_head_for_which_there_is_no_memory_is_a_warning(path, tmp_path, monkeypatch, caplog):
    file = tmp_path / DRAFT_HEADS / name_of(path)
    file.parent.mkdir()
    random_weights(1).save(file)

    def full(self, tokens):
        raise MemoryError("no memory is left")

    monkeypatch.setattr(LinearPacker, "head_rows", full)
    executor = load_with(path, tmp_path)
    assert executor._draft_head is None
    assert "no memory is left" in caplog.text
    executor.close()


def test_where_there_is_no_head_the_embedding_is_made_once(path, tmp_path, monkeypatch):
    made, embedding = [], LinearPacker.embedding
    monkeypatch.setattr(LinearPacker, "embedding", lambda self: made.append(self) or embedding(self))
    load_with(path, tmp_path).close()
    assert len(made) == 1


def test_a_head_that_writes_what_is_no_number_is_never_believed(path, tmp_path):
    weights = random_weights(1)
    weights.down.raw[:] = 0x7F  # scales of not-a-number
    file = tmp_path / DRAFT_HEADS / name_of(path)
    file.parent.mkdir()
    weights.save(file)
    executor = load_with(path, tmp_path)
    prompts = [random_tokens(9, seed=1)]
    head = executor._draft_head
    assert head is not None
    assert (
        generate(executor, head, prompts=prompts, temperature=0.0)[0]
        == generate(executor, None, prompts=prompts, temperature=0.0, drafts=0)[0]
    )
    head.close()
    executor.close()
