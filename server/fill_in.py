"""Fill-in-the-middle: the text between a beginning and an end, for models that were trained with marks for it."""

from __future__ import annotations

from engine.text.tokenizer import TextTokenizer
from server.errors import Unsupported

_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
_ENDS = ("<|endoftext|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<|fim_pad|>", "<file_sep>")
"""What models write behind the middle: the next file, or padding."""


def can_fill_in(tokenizer: TextTokenizer) -> bool:
    return _marks(tokenizer) is not None


def fill_in_prompt(tokenizer: TextTokenizer, before: str, after: str) -> str:
    """The raw prompt whose completion belongs between the two. Raises Unsupported where the model has no marks."""
    marks = _marks(tokenizer)
    if marks is None:
        raise Unsupported("suffix", "'suffix' is not supported: the served model has no marks for filling in.")
    begin, hole, middle = marks
    return f"{begin}{before}{hole}{after}{middle}"


def fill_in_stops(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Ids of the tokens that end a middle."""
    ends = (*_ENDS, *(_marks(tokenizer) or ()))
    return tuple(tokenizer.special_tokens[name] for name in ends if name in tokenizer.special_tokens)


def _marks(tokenizer: TextTokenizer) -> tuple[str, str, str] | None:
    known = tokenizer.special_tokens
    return next((marks for marks in _MARKS if all(mark in known for mark in marks)), None)
