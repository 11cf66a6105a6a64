"""Engine settings, frozen. The process that runs the model decides once what each "auto" is."""

from __future__ import annotations

from typing import Literal

import msgspec

Device = Literal["auto", "cpu", "cuda"]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Quantization = Literal["auto", "none", "int8", "int4"]
RunnerName = Literal["auto", "native", "torch"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What ``callgate serve`` was asked for. ``model`` is an alias, hub id, directory or .gguf file."""

    model: str
    served_model_name: str = ""
    device: Device = "auto"
    dtype: DType = "auto"
    quantization: Quantization = "auto"
    runner: RunnerName = "auto"
    max_model_len: int = 0
    """0: what the model was trained for, cut to what the KV memory holds."""
    mem_fraction_static: float = 0.0
    """Share of the device's memory for weights and KV together; 0: a default per device."""
    kv_pages: int = 0
    """0: from mem_fraction_static."""
    page_size: int = 16
    max_running_requests: int = 64
    max_queued_requests: int = 1024
    max_queued_tokens: int = 4_000_000
    max_queue_time: float = 60.0
    """Seconds that a request may have to wait until it is computed, by the pace of late. 0: none waits for a row."""
    chunked_prefill_size: int = 512
    target_itl: float = 0.4
    """Seconds between two tokens that others' prompts should not exceed: chunks shrink while rows decode. 0: whole
    chunks. Not with several ranks, which would not agree on a clock."""
    tp_size: int = 1
    threads: int = 0
    """CPU threads of the kernels; 0: every core this process may use."""
    speculative: Literal["auto", "off", "ngram"] = "auto"
    num_draft_tokens: int = 4
    enable_prefix_cache: bool = True
    kv_cache_dtype: Literal["auto", "float32", "bfloat16", "int8"] = "auto"
    attention_backend: Literal["auto", "flash", "triton", "sdpa"] = "auto"
    run_dir: str = ""
    """Directory (0700) of the ipc sockets; empty: a new one under the platform's runtime directory."""
    log_level: str = "info"
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str = ""
    hash_lm_delay: float = 0.0
    """``--model hash-lm`` only: seconds per step, to make load tests slow on purpose."""
