"""The flags of ``callgate serve``: one table, with the spellings that SGLang's and vLLM's users type.

A row names the field it sets: ``engine.x`` of EngineConfig, ``server.x`` of ServerArgs, ``run.x`` of the command
itself, or nothing for flags of peers that are always on here. Defaults are the fields' own.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

DTYPES = {"half": "float16", "float": "float32"}


def positive(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def not_negative(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value


def fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return value


def dtype(text: str) -> str:
    return DTYPES.get(text, text)


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One row. kind: how a value is read; ``on`` and ``off`` are switches; ``list`` may be given several times."""

    names: tuple[str, ...]
    target: str
    help: str
    kind: Callable[[str], Any] | str = str
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    group: str = "engine"


FLAGS = (
    Flag(names=("--model", "--model-path"), target="engine.model", metavar="M", group="model",
         help="alias, hub id, directory with config.json and safetensors, .gguf file, or hash-lm (a test model)"),
    Flag(names=("--served-model-name",), target="run.served_model_name", kind="words", metavar="NAME", group="model",
         help="names that requests may use; the first is listed"),
    Flag(names=("--chat-template",), target="server.chat_template", metavar="T", group="model",
         help="jinja file or built-in name; default: the model's own"),
    Flag(names=("--tool-call-parser",), target="server.tool_call_parser", metavar="P", group="model",
         help="a name from `callgate formats`, or auto (default): decided from the template, said at start"),
    Flag(names=("--reasoning-parser",), target="server.reasoning_parser", metavar="P", group="model",
         help="a reasoning format, auto (default) or none"),
    Flag(names=("--host",), target="server.host", group="http", help="address to listen on (default 127.0.0.1)"),
    Flag(names=("--port",), target="server.port", kind=port, group="http", metavar="N",
         help="port (default 8000; 0: any free one)"),
    Flag(names=("--api-key",), target="run.api_key", kind="list", metavar="K", group="http",
         help="key that clients must send; may be repeated; also CALLGATE_API_KEY"),
    Flag(names=("--api-key-file",), target="run.api_key_file", metavar="F", group="http",
         help="file with one key a line"),
    Flag(names=("--admin-api-key",), target="run.admin_api_key", kind="list", metavar="K", group="http",
         help="key for admin routes; also CALLGATE_ADMIN_API_KEY"),
    Flag(names=("--cors-origin", "--allowed-origins"), target="server.allowed_origins", kind="list", metavar="O",
         group="http", help="origin that browsers may call from; may be repeated"),
    Flag(names=("--allowed-host",), target="server.allowed_hosts", kind="list", metavar="H", group="http",
         help="Host header that is accepted; may be repeated; default: any"),
    Flag(names=("--root-path",), target="server.root_path", metavar="P", group="http", help="prefix behind a proxy"),
    Flag(names=("--requests-per-minute",), target="server.requests_per_minute", kind=not_negative, metavar="N",
         group="http", help="limit per key; 0 (default): none"),
    Flag(names=("--tokens-per-minute",), target="server.tokens_per_minute", kind=not_negative, metavar="N",
         group="http", help="limit per key; 0 (default): none"),
    Flag(names=("--max-concurrent-requests",), target="server.max_concurrent_requests", kind=not_negative, metavar="N",
         group="http", help="limit per key; 0 (default): none"),
    Flag(names=("--response-store-bytes",), target="server.response_store_bytes", kind=not_negative, metavar="N",
         group="http", help="memory for stored responses (default 256 MiB; 0: none are stored)"),
    Flag(names=("--response-store-seconds",), target="server.response_store_seconds", kind=seconds, metavar="S",
         group="http", help="how long a response is stored (default 24 hours)"),
    Flag(names=("--trust-request-chat-template",), target="server.trust_request_chat_template", kind="on",
         group="http", help="take chat_template from requests (off: 400)"),
    Flag(names=("--drain-timeout",), target="run.drain_timeout", kind=seconds, metavar="S", group="http",
         help="seconds that running requests get after the first SIGINT or SIGTERM (default 30)"),
    Flag(names=("--log-level",), target="run.log_level", group="http",
         choices=("debug", "info", "warning", "error", "critical"), help="what is logged (default info)"),
    Flag(names=("--log-prompts",), target="server.log_prompts", kind="on", group="http",
         help="write the prompts of generations to the log (off: none is)"),
    Flag(names=("--tool-finish-reason",), target="server.tool_finish_reason", choices=("tool_calls", "function_call"),
         group="tools", help="finish_reason of answers with calls (default tool_calls)"),
    Flag(names=("--tool-grammar",), target="server.tool_grammar", choices=("on", "strict-only", "off"), group="tools",
         help="grammar for arguments with tool_choice auto (default on)"),
    Flag(names=("--rescue",), target="server.tool_rescue", kind="both", group="tools",
         help="recover calls written outside the model's own format (default on)"),
    Flag(names=("--device",), target="engine.device", choices=("auto", "cpu", "cuda"),
         help="what the model runs on (default auto: a GPU where there is one)"),
    Flag(names=("--dtype",), target="engine.dtype", kind=dtype, choices=("auto", "float32", "bfloat16", "float16"),
         help="weights and activations (default auto)"),
    Flag(names=("--quantization", "-q"), target="engine.quantization", choices=("auto", "none", "int8", "int4"),
         help="how weights are kept (default auto: as in the files; the native runner makes int8 of floats)"),
    Flag(names=("--runner",), target="engine.runner", choices=("auto", "native", "torch"),
         help="native CPU kernels or torch (default auto)"),
    Flag(names=("--max-model-len", "--context-length"), target="engine.max_model_len", kind=positive, metavar="N",
         help="context length in tokens; default: the model's, cut to what memory holds"),
    Flag(names=("--mem-fraction-static", "--gpu-memory-utilization"), target="engine.mem_fraction_static",
         kind=fraction, metavar="F", help="share of the device's memory for weights and KV cache"),
    Flag(names=("--kv-pages",), target="engine.kv_pages", kind=positive, metavar="N",
         help="pages of KV cache, instead of a share of memory"),
    Flag(names=("--page-size", "--block-size"), target="engine.page_size", kind=positive, metavar="N",
         help="tokens per KV page (default 16)"),
    Flag(names=("--kv-cache-dtype",), target="engine.kv_cache_dtype", choices=("auto", "float32", "bfloat16", "int8"),
         help="how keys and values are kept (default auto)"),
    Flag(names=("--max-running-requests", "--max-num-seqs"), target="engine.max_running_requests", kind=positive,
         metavar="N", help="rows of one batch (default 64)"),
    Flag(names=("--max-queued-requests",), target="engine.max_queued_requests", kind=positive, metavar="N",
         help="more than so many waiting requests get a 503 (default 1024)"),
    Flag(names=("--max-queue-time",), target="engine.max_queue_time", kind=seconds, metavar="S",
         help="a request that would wait longer for a place in the batch gets a 503 (default 60; 0: none waits)"),
    Flag(names=("--chunked-prefill-size", "--max-num-batched-tokens"), target="engine.chunked_prefill_size",
         kind=positive, metavar="N", help="prompt tokens per step (default 512)"),
    Flag(names=("--target-itl",), target="engine.target_itl", kind=seconds, metavar="S",
         help="seconds between tokens that others' prompts should not exceed (default 0.4; 0: whole chunks)"),
    Flag(names=("--tp", "--tp-size", "--tensor-parallel-size"), target="engine.tp_size", kind=positive, metavar="N",
         help="tensor parallel processes (default 1)"),
    Flag(names=("--nnodes",), target="engine.nnodes", kind=positive, metavar="N",
         help="machines of one tensor-parallel group"),
    Flag(names=("--node-rank",), target="engine.node_rank", kind=not_negative, metavar="N",
         help="which of them this is"),
    Flag(names=("--dist-init-addr",), target="engine.dist_init_addr", metavar="A",
         help="host:port of the first of them"),
    Flag(names=("--threads",), target="engine.threads", kind=positive, metavar="N",
         help="CPU threads of the kernels; default: every core this process may use"),
    Flag(names=("--attention-backend",), target="engine.attention_backend", choices=("auto", "flash", "triton", "sdpa"),
         help="attention of the torch runner (default auto: the first that the machine can run)"),
    Flag(names=("--speculative",), target="engine.speculative", choices=("auto", "off", "ngram"),
         help="guesses from the text, earlier answers and the model's draft head; ngram: no head (default auto)"),
    Flag(names=("--num-draft-tokens",), target="engine.num_draft_tokens", kind=positive, metavar="N",
         help="most tokens of one draft (default 4)"),
    Flag(names=("--disable-radix-cache", "--no-enable-prefix-caching"), target="engine.enable_prefix_cache", kind="off",
         help="no reuse of KV pages between requests"),
    Flag(names=("--run-dir",), target="engine.run_dir", metavar="D", help="directory of the ipc sockets"),
    Flag(names=("--hash-lm-delay",), target="engine.hash_lm_delay", kind=seconds, metavar="S",
         help="seconds per step of --model hash-lm, for load tests"),
    Flag(names=("--enable-auto-tool-choice", "--enable-prefix-caching", "--enable-metrics", "--disable-log-requests",
                "--enable-chunked-prefill", "--skip-server-warmup"), target="", kind="on",
         help="accepted: this is how it always works here"),
)  # fmt: skip
"""Every flag of ``callgate serve``."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Put the table into an argparse parser, in groups."""
    groups = {name: parser.add_argument_group(name) for name in ("model", "http", "tools", "engine")}
    for flag in FLAGS:
        options: dict[str, Any] = {"dest": flag.target or "ignored", "default": None, "help": flag.help}
        if flag.kind in ("on", "off"):
            options |= {"action": "store_const", "const": flag.kind == "on"}
        elif flag.kind == "both":
            options |= {"action": argparse.BooleanOptionalAction}
        else:
            options["metavar"] = flag.metavar or (None if flag.choices else "X")
            options |= _value_options(flag)
        groups[flag.group].add_argument(*flag.names, **options)


def _value_options(flag: Flag) -> dict[str, Any]:
    if flag.kind == "list":
        return {"action": "append"}
    if flag.kind == "words":
        return {"nargs": "+"}
    return {"type": flag.kind, **({"choices": flag.choices} if flag.choices else {})}


def fields_of(namespace: argparse.Namespace, prefix: str) -> dict[str, Any]:
    """What was given on the command line for ``engine``, ``server`` or ``run``, by field name."""
    found = {}
    for key, value in vars(namespace).items():
        owner, _, field = key.partition(".")
        if owner == prefix and value is not None:
            found[field] = tuple(value) if isinstance(value, list) else value
    return found
