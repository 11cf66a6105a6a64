"""A small vocabulary for grammar tests: single bytes, some longer tokens, markers and an end."""

from __future__ import annotations

from engine.grammar.llguidance_backend import LLGuidanceBackend, VocabularyWrapper

LONGER = [
    b'": "', b'", "', b'{"', b'"}', b'"}}', b'{"name', b'": {"', b"}\n", b"\n\n", b"```json\n", b"    ", b"true",
    b"false", b"null", b"get", b"_weather", b"city", b"name", b"arguments", b"<tool_call>", b"</tool_call>",
    b"<think>", b"</think>", b"[TOOL_CALLS]",
]  # fmt: skip
TOKENS = [bytes([byte]) for byte in range(256)] + LONGER + [b"<|im_end|>"]
EOS = len(TOKENS) - 1
VOCAB_SIZE = len(TOKENS) + 7
"""Wider than the vocabulary, as real logits are."""


def encode(text: str | bytes) -> list[int]:
    """Greedy longest match over TOKENS."""
    data = text.encode() if isinstance(text, str) else text
    ids, at = [], 0
    by_length = sorted(range(256, EOS), key=lambda token: -len(TOKENS[token]))
    while at < len(data):
        token = next((token for token in by_length if data.startswith(TOKENS[token], at)), data[at])
        ids.append(token)
        at += len(TOKENS[token])
    return ids


def decode(ids: list[int]) -> str:
    return b"".join(TOKENS[token] for token in ids if token != EOS).decode("utf-8", "replace")


def backend() -> LLGuidanceBackend:
    wrapper = VocabularyWrapper(TOKENS, [EOS], EOS, encode)
    return LLGuidanceBackend(wrapper, VOCAB_SIZE, [EOS])
