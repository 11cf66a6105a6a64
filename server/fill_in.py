"""Fill-in-the-middle: the text between a beginning and an end, for models that were trained with marks for it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.text.tokenizer import TextTokenizer
from server.errors import Unsupported

_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
_FILE_MARKS = (("<|repo_name|>", "<|file_sep|>"), ("<repo_name>", "<file_sep>"))
"""What stands before a repository's name and before each of its files: Qwen2.5-Coder, StarCoder 2."""
_ENDS = ("<|endoftext|>", "<|file_sep|>", "<|file_separator|>", "<|repo_name|>", "<|fim_pad|>", "<file_sep>")
"""What models write behind the middle: the next file, or padding."""


def can_fill_in(tokenizer: TextTokenizer) -> bool:
    return _marks(tokenizer) is not None


def fill_in_prompt(
    tokenizer: TextTokenizer, before: str, after: str, files: Sequence[tuple[str, str]] = (), *, param: str = "suffix"
) -> str:
    """The raw prompt whose completion belongs between the two. files: (name, text) of what else there is to know.
    param: the request's field that holds ``after``. Raises Unsupported where the model has no marks."""
    marks = _marks(tokenizer)
    if marks is None:
        raise Unsupported(param, f"'{param}' is not supported: the served model has no marks for filling in.")
    begin, hole, middle = marks
    return f"{_repository(tokenizer, files)}{begin}{before}{hole}{after}{middle}"


def _repository(tokenizer: TextTokenizer, files: Sequence[tuple[str, str]]) -> str:
    """Other files, as models were trained to see them; where they were not, only their text."""
    texts = [(name, text if text.endswith("\n") else text + "\n") for name, text in files]
    for repository, file in _FILE_MARKS:
        if texts and repository in tokenizer.special_tokens and file in tokenizer.special_tokens:
            others = "".join(f"{file}{name}\n{text}" for name, text in texts)
            return f"{repository}repository\n{others}{file}file\n"
    return "".join(text for _, text in texts)


def fill_in_stops(tokenizer: TextTokenizer) -> tuple[int, ...]:
    """Ids of the tokens that end a middle."""
    ends = (*_ENDS, *(_marks(tokenizer) or ()))
    return tuple(tokenizer.special_tokens[name] for name in ends if name in tokenizer.special_tokens)


def _marks(tokenizer: TextTokenizer) -> tuple[str, str, str] | None:
    known = tokenizer.special_tokens
    return next((marks for marks in _MARKS if all(mark in known for mark in marks)), None)
