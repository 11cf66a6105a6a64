"""Runs a TorchExecutor on hand-made steps: which tokens of which sequence, on which pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from engine.config import EngineConfig
from engine.executor.forward_batch import ForwardBatch
from engine.executor.torch_executor import TorchExecutor
from engine.weights.checkpoint import open_checkpoint


def load(path: Path, *, dtype: str = "float32", pages: int = 64, page_size: int = 16, **settings) -> TorchExecutor:
    config = EngineConfig(
        model=str(path), device="cpu", dtype=dtype, threads=1, kv_pages=pages, page_size=page_size, **settings
    )
    return TorchExecutor(config, open_checkpoint(path))


class Sequences:
    """Sequences with pages taken from a shuffled pool, never returned: a page id says nothing about position."""

    def __init__(self, executor: TorchExecutor, seed: int = 0) -> None:
        self.executor = executor
        self._free = np.random.default_rng(seed).permutation(executor.num_pages).tolist()
        self._pages: dict[str, list[int]] = {}

    def step(self, rows: Sequence[tuple[str, Sequence[int], int]]) -> list[torch.Tensor]:
        """Each row is (name, tokens, position of the first); returns the logits of all tokens, row by row."""
        batch = self.batch(rows)
        hidden = self.executor.forward(batch)
        index = np.arange(len(batch.input_ids), dtype=np.int32)
        logits = torch.from_numpy(self.executor.logits(hidden, index))
        return list(logits.split([len(tokens) for _, tokens, _ in rows]))

    def batch(self, rows: Sequence[tuple[str, Sequence[int], int]]) -> ForwardBatch:
        size = self.executor.page_size
        tables = []
        for name, tokens, start in rows:
            pages = self._pages.setdefault(name, [])
            while len(pages) * size < start + len(tokens):
                pages.append(self._free.pop())
            tables.append(pages)
        table = np.zeros((len(rows), max(map(len, tables))), np.int32)
        for row, pages in enumerate(tables):
            table[row, : len(pages)] = pages
        lengths = [len(tokens) for _, tokens, _ in rows]
        positions = np.concatenate([np.arange(start, start + len(tokens)) for _, tokens, start in rows]).astype(
            np.int32
        )
        owner = np.repeat(np.arange(len(rows)), lengths)
        return ForwardBatch(
            input_ids=np.concatenate([np.asarray(tokens) for _, tokens, _ in rows]).astype(np.int32),
            positions=positions,
            cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
            seq_lens=np.array([start + len(tokens) for _, tokens, start in rows], np.int32),
            page_table=table,
            slot_mapping=table[owner, positions // size] * size + positions % size,
            logits_index=np.arange(len(positions), dtype=np.int32),
            page_size=size,
        )

    def forget(self) -> None:
        self._pages.clear()


def run_whole(executor: TorchExecutor, tokens: Sequence[int]) -> torch.Tensor:
    """Logits [T, vocab] of a prompt computed in one step on fresh pages."""
    return Sequences(executor).step([("whole", tokens, 0)])[0]
