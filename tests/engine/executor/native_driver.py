"""Runs a NativeExecutor where ``driver.Sequences`` expects a TorchExecutor."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.config import EngineConfig
from engine.executor.native_executor import NativeExecutor
from engine.weights.checkpoint import open_checkpoint


class NativeDriver:
    def __init__(self, executor: NativeExecutor) -> None:
        self.executor = executor
        self.num_pages, self.page_size = executor.num_pages, executor.page_size

    def forward(self, batch):
        return self.executor.model.forward(batch)

    def logits(self, logits, index):
        assert len(index) == len(logits)
        return np.array(logits)


def load_native(path: Path, *, cache: bool = False, pages: int = 64, page_size: int = 16, threads: int = 1, **settings):
    settings = {"quantization": "none", "kv_cache_dtype": "float32", **settings}
    config = EngineConfig(model=str(path), threads=threads, kv_pages=pages, page_size=page_size, **settings)
    return NativeExecutor(config, open_checkpoint(path), model_path=path if cache else None)
