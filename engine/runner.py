"""Which executor computes a model. The one place that names them; each is imported only when it is chosen."""

from __future__ import annotations

import time
from dataclasses import dataclass

from engine.child import ModelProcessSpec
from engine.executor.executor import Executor
from engine.messages import ModelInfo
from engine.weights.checkpoint import open_checkpoint

HASH_LM_CONTEXT = 32_768
HASH_LM_PAGES = 8_192


@dataclass(frozen=True, slots=True)
class Runner:
    """A loaded model: what computes it and what is known of it."""

    executor: Executor
    info: ModelInfo


def build_runner(spec: ModelProcessSpec, eos_token_ids: tuple[int, ...]) -> Runner:
    """Load the model. Raises whatever its loader raises: the caller turns it into one line."""
    if spec.model_kind == "hash-lm":
        return _hash_lm(spec, eos_token_ids)
    if spec.config.runner == "native":
        raise ValueError("the native runner is not built for this model; start with --runner torch.")
    return _torch(spec, eos_token_ids)


def _torch(spec: ModelProcessSpec, eos_token_ids: tuple[int, ...]) -> Runner:
    from engine.executor.torch_executor import TorchExecutor

    checkpoint = open_checkpoint(spec.model_path)
    executor = TorchExecutor(spec.config, checkpoint)
    model = checkpoint.config
    capacity = executor.num_pages * executor.page_size
    info = ModelInfo(
        model_path=spec.model_path,
        served_name=spec.served_name,
        architecture=model.architecture,
        context_length=min(spec.config.max_model_len or model.max_positions, capacity),
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        kv_capacity_tokens=capacity,
        max_running_requests=spec.config.max_running_requests,
        device=str(executor.device.device),
        dtype=executor.device.dtype_name,
        quantization=spec.config.quantization if spec.config.quantization != "auto" else "none",
        runner="torch",
        created=int(time.time()),
        embedding_size=model.hidden_size,
    )
    return Runner(executor, info)


def _hash_lm(spec: ModelProcessSpec, eos_token_ids: tuple[int, ...]) -> Runner:
    from engine.executor.hash_lm import EMBEDDING_SIZE, HashLMExecutor

    config = spec.config
    executor = HashLMExecutor(config.kv_pages or HASH_LM_PAGES, config.page_size, delay=config.hash_lm_delay)
    capacity = executor.num_pages * executor.page_size
    info = ModelInfo(
        model_path=spec.model_path,
        served_name=spec.served_name,
        architecture="hash-lm",
        context_length=min(config.max_model_len or HASH_LM_CONTEXT, capacity),
        vocab_size=executor.vocab_size,
        eos_token_ids=eos_token_ids,
        kv_capacity_tokens=capacity,
        max_running_requests=config.max_running_requests,
        device="cpu",
        dtype="uint64",
        runner="hash-lm",
        created=int(time.time()),
        embedding_size=EMBEDDING_SIZE,
    )
    return Runner(executor, info)
