"""Every ceiling of the HTTP edge, in one place. Sampling ceilings: engine/sampling_params.py.

A request beyond a ceiling is refused with an error that names the field; nothing is cut silently. The sizes
are generous for real clients (qwen-code sends 76 kB, codex 40 kB) and small enough that no single request can
hold the event loop for long.
"""

from __future__ import annotations

MAX_HEADER_BYTES = 32 * 1024
"""Request line and header block together."""
MAX_HEADERS = 100
MAX_URL_BYTES = 8 * 1024

MAX_CONNECTIONS = 8192
"""Open at a time; fewer where the process may not have that many descriptors."""
RESERVED_DESCRIPTORS = 128
"""Kept for what the server itself opens: its engine's pipes and sockets, the grammar check, files."""

PAUSE_SECONDS = 1.0
"""A timer that ends so late says that this process was stopped or had no processor, perhaps with its client. The client
gets the time again."""

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_DRAIN_BYTES = 4 * MAX_BODY_BYTES
"""A declared body up to this size is read and thrown away so that the client can read the 413."""
MAX_JSON_ELEMENTS = 500_000
"""Commas and opening brackets outside strings; bounds parse time and memory, whatever the body's size."""
MAX_JSON_STRINGS = 500_000
MAX_JSON_DEPTH = 512
"""Nesting of the whole body. orjson itself stops at 1024."""

MAX_USER_CHARS = 512
MAX_OUTPUT_TOKENS = (1 << 31) - 1
"""Largest max_tokens that is taken for a number meant by somebody; it is then cut to the context."""
MAX_METADATA_ENTRIES = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_CACHE_SALT = 64

MAX_MESSAGES = 4096
MAX_CONTENT_PARTS = 1024
"""Parts in one message."""
MAX_TOOL_CALLS = 256
"""Calls in one assistant message of the history."""
MAX_NAME = 256
"""``name`` of a message."""
MAX_TOOL_CALL_ID = 512

MAX_PROMPTS = 1024
"""Prompts of one /v1/completions or /generate request."""
MAX_COMPLETIONS = 2048
"""Its choices: prompts times n (or best_of)."""
MAX_BEST_OF = 128
MAX_COMPLETION_LOGPROBS = 5
MAX_EMBEDDING_INPUTS = 2048
MAX_RID = 256
"""A client's own request id on /generate and /abort_request."""
MAX_PARSED_CHARS = 1024 * 1024
"""Text of /parse_function_call and /separate_reasoning."""

MAX_TOOLS = 512
MAX_TOOL_NAME = 128
MAX_TOOLS_BYTES = 2 * 1024 * 1024
"""All tool definitions of one request, as JSON."""

MAX_SCHEMA_BYTES = 512 * 1024
"""One JSON Schema, as JSON."""
MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 50_000
MAX_ENUM_VALUES = 5_000
MAX_UNION_BRANCHES = 512
"""Entries of one anyOf, oneOf or allOf. What is too ambiguous with fewer is found by the grammar check."""
MAX_PATTERN_CHARS = 8 * 1024
MAX_PATTERN_NESTING = 63
MAX_SCHEMA_NAME = 64

MAX_GRAMMAR_BYTES = 64_000
"""Client-supplied regex or EBNF (``structured_outputs``)."""
MAX_GRAMMAR_NESTING = 64
MAX_CHOICES = 1024
MAX_STRUCTURES = 256
MAX_TRIGGERS = 64
MAX_TAG_CHARS = 1024
"""``begin``, ``end`` and triggers of a structural_tag."""

MAX_TEMPLATE_KWARGS = 32
MAX_TEMPLATE_KWARG_CHARS = 1024
MAX_PROMPT_CHARS = 4 * 1024 * 1024
"""Text of all messages; as much as a template may write."""
RENDER_TIMEOUT = 10.0
"""Seconds for rendering one prompt."""
RENDER_OFF_LOOP_CHARS = 64 * 1024
"""Requests whose messages and tools are larger than this are rendered in a worker thread."""

MAX_BACKGROUND = 64
"""Responses of one key that are made in the background at a time."""
RESPONSE_STORE_BYTES = 256 * 1024 * 1024
"""Stored responses of all keys; one key may fill a quarter of it."""
RESPONSE_STORE_SECONDS = 24 * 3600.0

HEADER_TIMEOUT = 8.0
"""Seconds from connection, or first byte of a further request, to the end of its headers."""
BODY_TIMEOUT = 30.0
BODY_STALL_TIMEOUT = 8.0
"""Seconds without a byte after which a body counts as incomplete."""
KEEP_ALIVE_TIMEOUT = 75.0
WRITE_TIMEOUT = 30.0
"""Seconds that one write may wait for a client that does not read."""
