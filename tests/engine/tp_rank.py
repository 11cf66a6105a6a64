"""One tensor-parallel rank as a process: ``python -m tests.engine.tp_rank MODEL RANK SIZE INIT_FILE PROMPTS``, where
prompts are separated by ``;`` and their token ids by ``,``. Prints the sha256 of all their logits and saves those of
rank 0 beside the init file, prompt after prompt."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch.distributed as dist

from engine.config import EngineConfig
from engine.distributed import init_tensor_parallel
from engine.executor.torch_executor import TorchExecutor
from engine.weights.checkpoint import open_checkpoint
from tests.engine.executor.driver import run_whole


def main() -> None:
    path, rank, size, init_file, prompts = sys.argv[1:]
    tp = init_tensor_parallel(int(rank), int(size), f"file://{init_file}")
    config = EngineConfig(model=path, device="cpu", dtype="float32", threads=1, kv_pages=32)
    executor = TorchExecutor(config, open_checkpoint(path), tp=tp)
    parts = [run_whole(executor, [int(token) for token in prompt.split(",")]).numpy() for prompt in prompts.split(";")]
    logits = np.concatenate(parts)
    if tp.rank == 0:
        np.save(Path(init_file).with_suffix(".npy"), logits, allow_pickle=False)
    print(hashlib.sha256(logits.tobytes()).hexdigest(), flush=True)
    if tp.size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
