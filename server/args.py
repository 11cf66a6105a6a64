"""Settings of the HTTP front end: frozen, resolved once. Engine settings are engine.config.EngineConfig."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from server import limits


class Secret:
    """A string that never shows itself: repr, str, format and JSON give ``***``."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


class ServerArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What ``callgate serve`` was asked for, as far as the API process is concerned."""

    host: str = "127.0.0.1"
    port: int = 8000
    root_path: str = ""
    log_level: str = "info"
    log_prompts: bool = False

    served_model_names: tuple[str, ...] = ()
    """Names that a request's ``model`` may carry; the first is the one we list. Empty: the engine's own names."""
    chat_template: str = ""
    """Path of a jinja file, or the name of one in chat_templates; empty: the model's own."""
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    """A name of toolcall.registry, "auto" (from the template) or "none"."""
    tool_finish_reason: Literal["tool_calls", "function_call"] = "tool_calls"
    """finish_reason of answers to requests with ``tools``; legacy ``functions`` always get function_call."""
    tool_rescue: bool = True
    """Recover calls that the model wrote outside its own format (toolcall.rescue)."""
    tool_grammar: Literal["on", "strict-only", "off"] = "on"
    """Grammar for calls with tool_choice auto: once a call opens, for every tool, for strict tools only, or never.
    required and named always have one."""
    trust_request_chat_template: bool = False
    """Accept ``chat_template`` from clients. Off: 400."""

    api_keys: tuple[Secret, ...] = ()
    admin_keys: tuple[Secret, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    """CORS origins; empty: no CORS headers at all."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names (without port) that requests may carry; empty: any for users, loopback names for admin routes."""
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    max_concurrent_requests: int = 0
    """Per key; 0: no limit."""

    response_store_bytes: int = limits.RESPONSE_STORE_BYTES
    response_store_seconds: float = limits.RESPONSE_STORE_SECONDS
    """What POST /v1/responses may keep in memory, of all keys together, and for how long."""

    max_body_bytes: int = limits.MAX_BODY_BYTES
    header_timeout: float = limits.HEADER_TIMEOUT
    body_timeout: float = limits.BODY_TIMEOUT
    body_stall_timeout: float = limits.BODY_STALL_TIMEOUT
    keep_alive_timeout: float = limits.KEEP_ALIVE_TIMEOUT
    write_timeout: float = limits.WRITE_TIMEOUT
    sse_comment_interval: float = 15.0
    """Seconds of silence after which a stream gets an SSE comment."""
    sse_chunk_interval: float = 45.0
    """Seconds of silence after which a stream gets a real chunk with an empty delta: some clients give up after
    60-120 s without a parsed chunk, comments do not count for them."""
    stream_start_timeout: float = 10.0
    """A stream's status line waits this long for the engine's first token, so that refusals can be 4xx and 503."""
    graceful_shutdown_timeout: int = 30


def load_keys(given: Iterable[str] = (), *, file: str = "", variable: str = "") -> tuple[Secret, ...]:
    """Keys from the command line, a file (one a line, # comments) and an environment variable (comma separated).

    Raises ValueError for a file that cannot be read and a key that no HTTP header can carry.
    """
    found = [key for chunk in given for key in chunk.split(",")]
    if file:
        lines = _text_of(file).splitlines()
        found += [line for line in (raw.strip() for raw in lines) if not line.startswith("#")]
    if variable:
        found += os.environ.get(variable, "").split(",")
    keys = dict.fromkeys(key.strip() for key in found if key.strip())
    for key in keys:
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ValueError("an API key must be printable ASCII without spaces")
    return tuple(Secret(key) for key in keys)


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"the API keys cannot be read from {file}: {getattr(error, 'strerror', 0) or error}"
        ) from error
