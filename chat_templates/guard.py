"""Keeps a client's text from becoming control tokens.

``<|im_end|>`` typed by a user must reach the model as seven ordinary tokens. The renderer puts one private-use
character inside every such spelling in every client string; the tokenizer encodes around it and drops it. One
code point, so that no slice or trim in a template can cut the guard in half.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from chat_templates.errors import TemplateError

MAX_DEPTH = 100
_PRIVATE_USE = (range(0xF8FF, 0xDFFF, -1), range(0x10FFFD, 0xEFFFF, -1))


@functools.lru_cache(maxsize=16)
def _pattern(tokens: tuple[str, ...]) -> re.Pattern[str] | None:
    """Matches, without consuming, wherever one of ``tokens`` starts: overlapping spellings are all found."""
    spellings = sorted((t for t in tokens if len(t) > 1 and not t.isspace()), key=len, reverse=True)
    if not spellings:
        return None
    return re.compile(f"(?={'|'.join(map(re.escape, spellings))})(.)", re.DOTALL)


def strings_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Every string, keys included, in a JSON-like value of at most MAX_DEPTH levels."""
    if depth > MAX_DEPTH:
        raise TemplateError(f"values nested deeper than {MAX_DEPTH} levels are not accepted")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from strings_in(key, depth + 1)
            yield from strings_in(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from strings_in(item, depth + 1)


def pick_unused(texts: Iterable[str]) -> str:
    """A private-use character that none of ``texts`` contains."""
    used = {ord(char) for text in texts for char in set(text) if char >= "\ue000"}
    for block in _PRIVATE_USE:
        for code in block:
            if code not in used:
                return chr(code)
    raise TemplateError("the conversation uses every private-use character of Unicode")


class Guard:
    """Breaks special-token spellings in client values. ``used`` tells whether any was found."""

    def __init__(self, char: str, special_tokens: Iterable[str]) -> None:
        self.char = char
        self.used = False
        self._pattern = _pattern(tuple(special_tokens))

    def apply(self, value: Any) -> Any:
        """A copy of a JSON-like value in which no string spells a special token."""
        if isinstance(value, str):
            return self._break(value)
        if isinstance(value, Mapping):
            return {self.apply(key): self.apply(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.apply(item) for item in value]
        return value

    def _break(self, text: str) -> str:
        if self._pattern is None:
            return text
        broken, count = self._pattern.subn(lambda match: match.group(1) + self.char, text)
        self.used = self.used or count > 0
        return broken
