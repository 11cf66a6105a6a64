"""Small tokenizers trained on the spot, and texts that tokenizers disagree about."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = (
    "def add(first: int, second: int) -> int:\n    return first + second\n" * 3,
    "The quick brown fox jumps over the lazy dog; it's 2024, isn't it? They'll see 1234567 things.",
    "Größenwahn, naïveté, façade, Ελληνικά, русский язык, 中文文本, 日本語テキスト, 한국어, العربية 🎉🚀👩‍👩‍👧",
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n<tool_call>\n</tool_call> <|im_start|> text',
    "        indented\n\n\n\tTabs\r\nand   runs     of spaces      everywhere   ",
)
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKERS = ("<tool_call>", "</tool_call>")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def byte_level(nfc: bool = True) -> Tokenizer:
    """A Qwen-like byte-level BPE tokenizer with its special tokens."""
    tokenizer = Tokenizer(models.BPE())
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    return tokenizer


@cache
def sentencepiece() -> Tokenizer:
    """A Llama-2-like BPE tokenizer: U+2581 for spaces, a dummy prefix, byte fallback."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_first = ["<unk>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=bytes_first, show_progress=False, max_token_length=8)
    tokenizer.train_from_iterator([" ".join(text.split()) for text in CORPUS], trainer)
    spec = json.loads(tokenizer.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] == "<unk>"]
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in ("<s>", "</s>")])
    return tokenizer


def random_texts(count: int, seed: int = 3) -> list[str]:
    """Unicode, whitespace runs, code and broken pieces of special tokens."""
    rng = random.Random(seed)
    pieces = (
        *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "a", "B", "1", "23", "'s", "'LL", "!", "..", "-", "_"),
        *("é", "e\u0301", "中", "🎉", "👩‍👩‍👧", "\u200d", "<|", "|>", "<tool_call", "\u0130", "ſ", "ǅ", "\x00", "▁"),
        *("def ", "return", "{", '"name": ', "Paris", "русский"),
    )
    texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 40))) for _ in range(count // 2)]
    ranges = ((32, 127), (0xA0, 0x250), (0x370, 0x1000), (0x3000, 0x9FFF), (0x1F300, 0x1FAFF), (0x300, 0x36F))
    for _ in range(count - len(texts)):
        texts.append("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 60))))
    return texts


def gguf_values(tokenizer: Tokenizer, pre: str = "qwen2", **more: Any) -> dict[str, Any]:
    """The metadata that a converter would write for a byte-level tokenizer."""
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    types = [3 if token in SPECIALS else 4 if token in MARKERS else 1 for token in tokens]
    merges = [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.ggml.bos_token_id": tokens.index("<|endoftext|>"),
        "tokenizer.chat_template": "{{ messages }}",
        **more,
    }


def gguf_bytes(values: dict[str, Any], version: int = 3) -> bytes:
    """A GGUF file of metadata only."""
    body = [b"GGUF", struct.pack("<IQQ", version, 0, len(values))]
    for key, value in values.items():
        body += [_string(key), _value(value)]
    return b"".join(body)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    return _array(value)


def _array(values: Sequence[Any]) -> bytes:
    head = struct.pack("<I", 9)
    if isinstance(values[0], str):
        return head + struct.pack("<IQ", 8, len(values)) + b"".join(map(_string, values))
    if isinstance(values[0], float):
        return head + struct.pack(f"<IQ{len(values)}f", 6, len(values), *values)
    if isinstance(values[0], bool):
        return head + struct.pack(f"<IQ{len(values)}?", 7, len(values), *values)
    return head + struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)
