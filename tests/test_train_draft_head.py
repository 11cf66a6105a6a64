"""What a draft head is trained on is what the model does, and what is trained is what the server computes."""

from __future__ import annotations

import json
import random
from itertools import islice

import numpy as np
import pytest
import torch

from engine.executor.draft_head import DraftHead
from engine.executor.native_executor import _weight
from engine.executor.native_weights import LinearPacker
from engine.kernels.cpu.linear import Context, Format
from engine.kernels.cpu.loader import load
from engine.weights.checkpoint import open_checkpoint
from scripts.draft_data import SUBJECTS, Answer, Writer, chats
from scripts.train_draft_head import Trainer, samples_of, vocabulary
from tests.engine.executor.driver import Sequences
from tests.engine.executor.native_driver import NativeDriver, load_native
from tests.engine.kernels.cpu.linear_cases import LEVELS
from tests.engine.models.tiny import make_model, random_tokens, save

VOCAB, HIDDEN = 203, 64
pytestmark = pytest.mark.skipif(not LEVELS, reason="no compiler for the native kernels")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return save(make_model("qwen2", scale=0.1, vocab_size=VOCAB, hidden_size=HIDDEN), tmp_path_factory.mktemp("model"))


def test_answers_are_what_the_model_writes(path, monkeypatch):
    monkeypatch.setattr("scripts.draft_data._LANES", 3)
    monkeypatch.setattr("scripts.draft_data._PAGES", 8)
    monkeypatch.setattr("scripts.draft_data._MAX_PROMPT", 40)
    prompts = [random_tokens(5 + index, seed=index) for index in range(200)]
    asked = iter(prompts)
    executor = load_native(path, quantization="int8", pages=24)
    done = []
    answers = Writer(executor, frozenset({7}), 12, seed=1).write(asked, 120, done.append)
    assert done[-1] >= 120
    assert sum(len(answer.written) for answer in answers) >= 120
    assert {len(answer.written) for answer in answers[:-3]} <= set(range(1, 13))
    used = prompts[: len(prompts) - len(list(asked))]
    fresh = load_native(path, quantization="int8", pages=400)
    sequences, seen = Sequences(NativeDriver(fresh)), 0
    for index, prompt in enumerate(used):
        for answer in answers:
            tokens = [*prompt, *answer.written.tolist()]
            batch = sequences.batch([(f"{index} {seen}", tokens[:-1], 0)])
            hidden = np.empty((len(tokens) - 1, HIDDEN), np.float32)
            logits = fresh.model.forward(batch, hidden=hidden)
            if np.array_equal(hidden[len(prompt) - 1 :].astype(np.float16), answer.states):
                assert logits.argmax(1)[-len(answer.chosen) :].tolist() == answer.chosen.tolist()
                seen += 1
        if index == 4:
            break
    assert seen == 5, "each prompt is the beginning of one answer"
    executor.close()
    fresh.close()


def test_prompts_come_from_a_file_or_from_the_list(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps("Hello") + "\n\n" + json.dumps([{"role": "user", "content": "Tools?"}]) + "\n")
    found = {chat[0]["content"] for chat in islice(chats(random.Random(1), file), 50)}
    assert found == {"Hello", "Tools?"}
    assert any(SUBJECTS[0] in chat[0]["content"] for chat in islice(chats(random.Random(1)), 2000))


def test_the_vocabulary_is_what_is_chosen_most():
    states = np.zeros((6, 4), np.float16)
    answer = Answer(states, np.zeros(6, np.int32), np.array([9, 9, 9, 4, 4, 7], np.int32))
    assert vocabulary([answer], 2, 100).tolist() == [9, 4]
    assert vocabulary([answer], 6, 100).tolist() == [9, 4, 7, 0, 1, 2]


def test_what_is_trained_is_what_the_server_computes(path):
    """Each token is followed by one that depends on it alone: a head learns that, and guesses it once quantized."""
    rng = np.random.default_rng(1)
    follows = rng.permutation(VOCAB).astype(np.int32)
    written = rng.integers(0, VOCAB, 6000).astype(np.int32)
    states = rng.normal(size=(6000, HIDDEN)).astype(np.float16)
    answers = [Answer(states, written, np.concatenate([[0], follows[written[:-1]]]).astype(np.int32))]
    tokens = vocabulary(answers, VOCAB, VOCAB)
    checkpoint = open_checkpoint(path)
    torch.manual_seed(0)
    trainer = Trainer(checkpoint, tokens, 256)
    samples = samples_of(answers, tokens, VOCAB)
    before = trainer.accuracy(samples)
    trainer.train(samples, 60)
    after = trainer.accuracy(samples)
    assert before < 0.1
    assert after > 0.8
    packer, context = LinearPacker(load(), checkpoint, "int8"), Context(1)
    head = DraftHead(
        context,
        trainer.weights(Format.Q8_0),
        _weight(packer.embedding()),
        lambda tokens: _weight(packer.head_rows(tokens)),
    )
    guesses = [token for token, _ in head.guess(states[:300].astype(np.float32), written[:300])]
    assert np.mean(np.array(guesses) == follows[written[:300]]) > after - 0.05
    head.close()
    context.close()
