"""Where tests find the real 0.5B weights, and prompts to ask it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.model_store.cache import cached_path
from engine.model_store.catalog import find_entry

ALIAS = "qwen2.5-coder-0.5b"

QUESTIONS = (
    "Write a Python function that returns the n-th Fibonacci number.",
    "What is the capital of France?",
    "Explain what a mutex is in two sentences.",
    "Translate 'good morning' into Spanish, German and Italian.",
    "Write a SQL query that counts orders per customer.",
    "What does the HTTP status 404 mean?",
    "Reverse a linked list in C.",
    "List the first ten prime numbers.",
    "How do I read a file line by line in Go?",
    "What is 17 times 23?",
    "Write a regular expression for an IPv4 address.",
    "Explain recursion to a child.",
    "Give me a bash one-liner that finds the ten largest files.",
    "Convert 100 degrees Fahrenheit to Celsius.",
    "What is the difference between a list and a tuple in Python?",
    "Write a haiku about the sea.",
    "Sort an array of numbers in JavaScript without sort().",
    "Name three uses of a hash map.",
    "What is the time complexity of binary search, and why?",
    "Write a JSON object that describes a book.",
)


def real_model_path() -> Path:
    """The GGUF file of CALLGATE_TEST_GGUF, or the cached default model; skips where there is neither."""
    named = os.environ.get("CALLGATE_TEST_GGUF")
    if named:
        return Path(named)
    entry = find_entry(ALIAS)
    path = cached_path(entry) if entry is not None else None
    if path is None:
        pytest.skip(f"{ALIAS} is not in the cache: callgate pull {ALIAS}")
    return path


def chat_prompt(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
