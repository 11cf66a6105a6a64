"""The same bits for a token, however its prompt was cut, batched, cached or preempted."""

from __future__ import annotations

import random

import pytest
import torch

from tests.engine.executor.driver import Sequences, load, run_whole
from tests.engine.models.tiny import make_model, random_tokens, save

PROMPTS = [random_tokens(count, seed=count) for count in (5, 17, 64, 65, 66, 130, 200, 31, 1, 90)]


@pytest.fixture(
    scope="module",
    params=[("qwen2-7-heads", "float32"), ("qwen2-7-heads", "bfloat16"), ("moe", "float32"), ("moe", "bfloat16")],
    ids=" ".join,
)
def executor(request, tmp_path_factory):
    variant, dtype = request.param
    path = tmp_path_factory.mktemp("model")
    save(make_model(variant, scale=0.1), path)
    return load(path, dtype=dtype, pages=512)


@pytest.fixture(scope="module")
def alone(executor):
    return [run_whole(executor, prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_chunk_size(executor, alone, size):
    for prompt, expected in zip(PROMPTS, alone):
        sequences = Sequences(executor, seed=size)
        chunks = [sequences.step([("a", prompt[i : i + size], i)])[0] for i in range(0, len(prompt), size)]
        assert torch.equal(torch.cat(chunks), expected)


@pytest.mark.parametrize("seed", range(6))
def test_random_batches_and_chunks(executor, alone, seed):
    """Rows of random sequences, in random order, with random chunk lengths, until all prompts are done."""
    rng = random.Random(seed)
    sequences = Sequences(executor, seed=seed)
    done: list[list[torch.Tensor]] = [[] for _ in PROMPTS]
    position = [0] * len(PROMPTS)
    while any(at < len(prompt) for at, prompt in zip(position, PROMPTS)):
        open_ = [i for i, prompt in enumerate(PROMPTS) if position[i] < len(prompt)]
        chosen = rng.sample(open_, rng.randint(1, len(open_)))
        rows = []
        for i in chosen:
            size = rng.choice([1, 1, 2, 5, 20, 100])
            rows.append((str(i), PROMPTS[i][position[i] : position[i] + size], position[i]))
        for i, row, logits in zip(chosen, rows, sequences.step(rows)):
            done[i].append(logits)
            position[i] += len(row[1])
    for i, expected in enumerate(alone):
        assert torch.equal(torch.cat(done[i]), expected), i


def test_wide_decode_batch(executor, alone):
    """More rows than one tile holds, each at its own position; other rows of the batch only fill it up."""
    sequences = Sequences(executor)
    fillers = [(f"f{i}", random_tokens(1 + i % 3, seed=i), 0) for i in range(150)]
    for prompt, expected in zip(PROMPTS, alone):
        sequences.forget()
        sequences = Sequences(executor)
        if len(prompt) > 1:
            sequences.step([("a", prompt[:-1], 0)])
        rows = [*fillers[:77], ("a", prompt[-1:], len(prompt) - 1), *fillers[77:]]
        assert torch.equal(sequences.step(rows)[77], expected[-1:])


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_page_size(page_size, tmp_path):
    path = save(make_model("llama-3-heads", scale=0.1), tmp_path)
    expected = [run_whole(load(path, page_size=16), prompt) for prompt in PROMPTS[:6]]
    other = load(path, page_size=page_size, pages=256)
    assert all(torch.equal(run_whole(other, prompt), want) for prompt, want in zip(PROMPTS, expected))


def test_stale_contents_of_reused_pages_do_not_matter(executor, alone):
    """Pages hold other sequences' keys before and after the part that is written."""
    for seed in range(3):
        junk = Sequences(executor, seed=seed)
        junk.step([(str(i), random_tokens(200, seed=90 + i), 0) for i in range(30)])
        assert torch.equal(run_whole(executor, PROMPTS[5]), alone[5])


def test_threads(tmp_path):
    """Not promised by any library, but seen to hold here: a different thread count, the same bits."""
    path = save(make_model("qwen2", scale=0.1, intermediate_size=2048, hidden_size=256), tmp_path)
    executor = load(path)
    expected = run_whole(executor, PROMPTS[6])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert torch.equal(run_whole(executor, PROMPTS[6][:77]), expected[:77])
    finally:
        torch.set_num_threads(before)
