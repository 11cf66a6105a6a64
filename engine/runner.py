"""Which executor computes a model. The one place that names them; each is imported only when it is chosen."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.child import ModelProcessSpec
from engine.config import EngineConfig
from engine.executor.executor import Executor
from engine.lockstep import Lockstep
from engine.messages import ModelInfo
from engine.platform.host import calm_openmp, usable_threads
from engine.ranks import local_ranks
from engine.weights.checkpoint import Checkpoint, open_checkpoint

logger = logging.getLogger(__name__)

HASH_LM_CONTEXT = 32_768
HASH_LM_PAGES = 8_192


@dataclass(frozen=True, slots=True)
class Runner:
    """A loaded model: what computes it and what is known of it. ``lockstep`` where several ranks compute it."""

    executor: Executor
    info: ModelInfo
    lockstep: Lockstep | None = None


def build_runner(spec: ModelProcessSpec, eos_token_ids: tuple[int, ...]) -> Runner:
    """Load the model. Raises whatever its loader raises: the caller turns it into one line."""
    if spec.model_kind == "hash-lm":
        if spec.config.tp_size > 1:
            raise ValueError("hash-lm has no tensor parallelism: --tp must be 1.")
        return _hash_lm(spec, eos_token_ids)
    checkpoint = open_checkpoint(spec.model_path)
    if _is_native(spec.config, checkpoint):
        return _native(spec, checkpoint, eos_token_ids)
    return _torch(spec, checkpoint, eos_token_ids)


def _is_native(config: EngineConfig, checkpoint: Checkpoint) -> bool:
    """End of ``--runner auto``: native where it can serve the model as asked, else torch. Says why not."""
    if config.runner == "torch" or (config.runner == "auto" and _may_use_gpu(config)):
        return False
    from engine.executor.native_executor import refuses

    reason = _beyond_native(checkpoint) or refuses(config, checkpoint.config)
    if reason is None:
        return True
    if config.runner == "native":
        raise ValueError(f"{reason}; start with --runner torch.")
    logger.info("using the torch runner: %s", reason)
    return False


def _beyond_native(checkpoint: Checkpoint) -> str | None:
    """What only the torch runner computes, known before any kernel is compiled."""
    if checkpoint.config.moe is not None:
        return "the native runner has no mixture of experts"
    if checkpoint.config.quantization is not None:
        return f"the native runner cannot read {checkpoint.config.quantization.method} weights"
    return None


def _may_use_gpu(config: EngineConfig) -> bool:
    """A GPU was asked for, or ``--device auto`` may find one: torch decides then. Asking torch here would import it."""
    return config.device == "cuda" or (config.device == "auto" and any(Path("/dev").glob("nvidia[0-9]*")))


def _native(spec: ModelProcessSpec, checkpoint: Checkpoint, eos_token_ids: tuple[int, ...]) -> Runner:
    from engine.executor.native_executor import NativeExecutor
    from engine.model_store.cache import cache_home

    executor = NativeExecutor(spec.config, checkpoint, model_path=Path(spec.model_path), cache_home=cache_home)
    return _runner(spec, checkpoint, executor, eos_token_ids, ("native", "cpu", executor.kv_dtype))


def _torch(spec: ModelProcessSpec, checkpoint: Checkpoint, eos_token_ids: tuple[int, ...]) -> Runner:
    calm_openmp()
    from engine.distributed import ControlChannel, init_tensor_parallel
    from engine.executor.torch_executor import TorchExecutor
    from engine.platform.device import resolve_device

    config, local_size = spec.config, len(local_ranks(spec.config))
    if local_size > 1 and not config.threads:
        config = msgspec.structs.replace(config, threads=max(1, usable_threads() // local_size))
    device = resolve_device(config, spec.rank % local_size)
    device.use()
    tp = init_tensor_parallel(
        spec.rank, config.tp_size, spec.rendezvous, backend="gloo" if device.is_cpu else "nccl", local_size=local_size
    )
    executor = TorchExecutor(config, checkpoint, tp=tp)
    runner = _runner(spec, checkpoint, executor, eos_token_ids, ("torch", str(device.device), device.dtype_name))
    return runner if tp.size == 1 else replace(runner, lockstep=Lockstep(ControlChannel(tp)))


def _runner(
    spec: ModelProcessSpec,
    checkpoint: Checkpoint,
    executor: Executor,
    eos_token_ids: tuple[int, ...],
    facts: tuple[str, str, str],
) -> Runner:
    """``facts``: runner, device and dtype."""
    config, model = spec.config, checkpoint.config
    runner, device, dtype = facts
    capacity = executor.num_pages * executor.page_size
    info = ModelInfo(
        model_path=spec.model_path,
        served_name=spec.served_name,
        architecture=model.architecture,
        context_length=min(config.max_model_len or model.max_positions, capacity),
        vocab_size=model.vocab_size,
        eos_token_ids=eos_token_ids,
        kv_capacity_tokens=capacity,
        max_running_requests=config.max_running_requests,
        device=device,
        dtype=dtype,
        quantization=_quantization(config, checkpoint, runner),
        runner=runner,
        created=int(time.time()),
        embedding_size=model.hidden_size,
    )
    return Runner(executor, info)


def _quantization(config: EngineConfig, checkpoint: Checkpoint, runner: str) -> str:
    """What ``auto`` came to: a GGUF keeps its own types; float weights become int8 in the native runner."""
    if config.quantization != "auto":
        return config.quantization
    if checkpoint.format == "gguf":
        return "gguf"
    if checkpoint.config.quantization is not None:
        return checkpoint.config.quantization.method
    return "int8" if runner == "native" else "none"


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
