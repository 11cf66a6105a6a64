"""What is served, as far as a client may know: chosen fields, no paths, no keys, no command line."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import msgspec

from server.cli import version
from server.services import Services


def model_info(services: Services) -> dict[str, Any]:
    """GET /get_model_info, SGLang's names first."""
    info = services.engine.model_info
    tokenizer = services.engine.tokenizer
    name = services.model_names[0]
    return {
        "model_path": name,
        "tokenizer_path": name,
        "is_generation": True,
        "served_model_names": list(services.model_names),
        "model_file": PurePath(info.model_path).name,
        "architecture": info.architecture,
        "max_model_len": info.context_length,
        "vocab_size": info.vocab_size,
        "embedding_size": info.embedding_size,
        "eos_token_ids": list(info.eos_token_ids),
        "bos_token": tokenizer.bos_token,
        "eos_token": tokenizer.eos_token,
        "dtype": info.dtype,
        "quantization": info.quantization,
    }


async def server_info(services: Services) -> dict[str, Any]:
    """GET /get_server_info and /server_info."""
    info, args, dialect = services.engine.model_info, services.args, services.planner.dialect
    stats = msgspec.to_builtins(await services.engine.stats())
    return {
        "version": version(),
        "state": services.engine.state,
        "served_model_names": list(services.model_names),
        "device": info.device,
        "runner": info.runner,
        "dtype": info.dtype,
        "quantization": info.quantization,
        "max_model_len": info.context_length,
        "max_running_requests": info.max_running_requests,
        "max_total_num_tokens": info.kv_capacity_tokens,
        "tool_call_parser": dialect.format.name,
        "reasoning_parser": dialect.reasoning.name if dialect.reasoning is not None else None,
        "tool_grammar": args.tool_grammar,
        "tool_rescue": args.tool_rescue,
        "internal_states": [{key: value for key, value in stats.items() if key not in ("rid", "type")}],
    }
