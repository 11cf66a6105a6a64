"""One way to any model's tokenizer."""

from __future__ import annotations

import os
from pathlib import Path

from engine.text.gguf_tokenizer import load_gguf_tokenizer
from engine.text.hf_tokenizer import TokenizerError, load_hf_tokenizer
from engine.text.tokenizer import TextTokenizer
from engine.weights.gguf_header import is_gguf

HASH_LM = "hash-lm"


def load_tokenizer(path: str | Path) -> TextTokenizer:
    """The tokenizer of ``hash-lm``, of a .gguf file or of a model directory.

    Encoders are built on first use. Raises TokenizerError or GGUFError (both
    ValueError, one line) and OSError.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # prompts are encoded one by one
    if str(path) == HASH_LM:
        from engine.text.byte_tokenizer import ByteTokenizer

        return ByteTokenizer()
    path = Path(path)
    if path.is_dir():
        return load_hf_tokenizer(path)
    if not path.exists():
        raise TokenizerError(f"{path} does not exist.")
    if is_gguf(path):
        return load_gguf_tokenizer(path)
    raise TokenizerError(f"{path} is neither a GGUF file nor a model directory.")
