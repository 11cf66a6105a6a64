from __future__ import annotations

import subprocess
import sys

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


@pytest.mark.parametrize(
    ("variant", "changes"), [("qwen2", {}), ("llama-mqa", {"tie_word_embeddings": True}), ("moe", {})]
)
def test_two_ranks_give_the_logits_of_one(variant, changes, tmp_path):
    path = save(make_model(variant, scale=0.1, vocab_size=200, **changes), tmp_path / "model")
    tokens = random_tokens(40, vocab=200)
    alone = run_whole(load(path), tokens).numpy()
    arguments = [str(path), "{}", "2", str(tmp_path / "init"), ",".join(map(str, tokens))]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.engine.tp_rank", *(part.format(rank) for part in arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs[0] == outputs[1]
    together = np.load(tmp_path / "init.npy", allow_pickle=False)
    assert np.abs(together - alone).max() <= 1e-5
    assert (together.argmax(-1) == alone.argmax(-1)).all()


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
