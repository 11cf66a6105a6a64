"""The pre-tokenizers that GGUF files name in ``tokenizer.ggml.pre``, as the `tokenizers` library runs them.

Each is the published tokenizer.json of its family; llama.cpp's src/llama-vocab.cpp lists the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + _TAIL
_QWEN35 = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + _TAIL
_SEED_CODER = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_CASED_TAIL}"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_CASED_TAIL}"
)
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Splits in order, then the byte alphabet.

    splits: patterns whose matches stand alone. digits: every digit stands alone. ignore_merges: a word that
    is a token is taken whole. add_bos: what add_special_tokens means where the file does not say.
    """

    splits: tuple[str, ...]
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


def _named(rule: PreTokenizer, *names: str) -> dict[str, PreTokenizer]:
    return dict.fromkeys(names, rule)


PRE_TOKENIZERS: Mapping[str, PreTokenizer] = MappingProxyType(
    {
        **_named(PreTokenizer((_GPT2,)), "default", "gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4"),
        **_named(PreTokenizer((_GPT2,)), "gigachat", "a.x-4.0", "mellum", "trillion"),
        **_named(PreTokenizer((_GPT2,), digits=True), "smollm", "starcoder", "refact", "command-r", "codeshell"),
        **_named(PreTokenizer((_GPT2,), digits=True), "exaone", "minerva-7b"),
        **_named(PreTokenizer((_QWEN2,), nfc=True), "qwen2", "deepseek-r1-qwen"),
        **_named(PreTokenizer((_QWEN2,)), "stablelm2", "megrez", "kormo", "hunyuan"),
        "qwen35": PreTokenizer((_QWEN35,), nfc=True),
        "seed-coder": PreTokenizer((_SEED_CODER,)),
        **_named(
            PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
            *("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        ),
        **_named(PreTokenizer((_LLAMA3,)), "dbrx", "smaug-bpe", "glm4", "chatglm-bpe"),
        "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
        "gpt-4o": PreTokenizer((_GPT4O,)),
        "llama4": PreTokenizer((_GPT4O,), add_bos=True),
        "deepseek-coder": PreTokenizer(
            (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+", r"\p{N}")
        ),
        "deepseek-v3": PreTokenizer(
            (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK3), add_bos=True
        ),
    }
)


def apply(rule: PreTokenizer, tokenizer: Tokenizer) -> None:
    """Give ``tokenizer`` this rule's normaliser and pre-tokenizer."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    steps: list[pre_tokenizers.PreTokenizer] = []
    if rule.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.extend(pre_tokenizers.Split(Regex(split), "isolated") for split in rule.splits)
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
