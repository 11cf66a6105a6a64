from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.distributed import TensorParallel
from tests.engine.executor.driver import load, run_whole
from tests.engine.models.tiny import make_model, random_tokens, save


def test_one_rank_needs_no_group():
    tp, x = TensorParallel(), torch.randn(3, 4)
    assert tp.all_reduce(x) is x
    assert tp.all_gather(x) is x
    assert tp.share(10, "heads") == slice(0, 10)


@pytest.mark.parametrize(
    ("rank", "size", "heads", "expected"), [(1, 2, 4, (2, 4)), (3, 4, 2, (1, 2)), (2, 8, 2, (0, 1))]
)
def test_key_heads_are_shared_or_replicated(rank, size, heads, expected):
    part = TensorParallel(rank, size).kv_heads(heads)
    assert (part.start, part.stop) == expected


def test_uneven_shares_are_refused():
    with pytest.raises(ValueError, match=r"attention heads \(7\) cannot be divided among 2 ranks"):
        TensorParallel(0, 2).share(7, "attention heads")
    with pytest.raises(ValueError, match="evenly"):
        TensorParallel(0, 4).kv_heads(3)


def on_two_ranks(path, prompts: list[list[int]], directory: Path) -> tuple[np.ndarray, str]:
    """Logits of all prompts one after the other, and their sha256, which both ranks must have printed."""
    directory.mkdir()
    text = ";".join(",".join(map(str, tokens)) for tokens in prompts)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.tp_rank", str(path), str(rank), "2", str(directory / "init"), text],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs[0] == outputs[1]
    return np.load(directory / "init.npy", allow_pickle=False), outputs[0]


@pytest.mark.parametrize(
    ("variant", "changes", "count"),
    [("qwen3", {}, 50), ("qwen2", {}, 3), ("llama-mqa", {"tie_word_embeddings": True}, 3), ("moe", {}, 3)],
)
def test_two_ranks_give_the_logits_of_one(variant, changes, count, tmp_path):
    """The same to 1e-5 in float32, and the same bits in every run."""
    path = save(make_model(variant, scale=0.1, vocab_size=200, **changes), tmp_path / "model")
    prompts = [random_tokens(1 + index * 29 % 60, seed=index, vocab=200) for index in range(count)]
    executor = load(path)
    alone = np.concatenate([run_whole(executor, tokens).numpy() for tokens in prompts])
    together, digest = on_two_ranks(path, prompts, tmp_path / "first")
    worst = np.abs(together - alone).max()
    equal = int((together.argmax(-1) == alone.argmax(-1)).sum())
    print(f"{variant}, {count} prompts: max abs logit difference {worst:.1e}, argmax equal at {equal} of {len(alone)}")
    assert worst <= 1e-5
    assert equal == len(alone)
    assert np.abs(alone).max() > 0.1
    if count > 3:
        assert on_two_ranks(path, prompts, tmp_path / "second")[1] == digest


def test_control_data_of_any_length_reaches_every_rank(tmp_path):
    """Around the length that travels in one piece, and long enough for several."""
    command = [sys.executable, "-m", "tests.engine.control_rank", "{}", str(tmp_path / "init")]
    ranks = [
        subprocess.Popen([part.format(rank) for part in command], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[0] == "smallest 3"
    assert len(outputs[0].splitlines()) == 8
