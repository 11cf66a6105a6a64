"""Serving workloads against any OpenAI-compatible /v1/chat/completions: ``python -m benchmarks.serving``."""
