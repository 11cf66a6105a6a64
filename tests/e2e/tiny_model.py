"""A tiny random model as a directory that the whole server can load: weights, config and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

from tests.engine.models.tiny import make_model, save
from tests.engine.text.samples import byte_level

VOCAB = 608


def tiny_model(directory: Path, variant: str = "qwen3", **changes) -> Path:
    """``variant`` of tests.engine.models.tiny with a byte-level tokenizer beside it."""
    path = save(make_model(variant, scale=0.15, vocab_size=VOCAB, **changes), directory)
    byte_level().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    return path
