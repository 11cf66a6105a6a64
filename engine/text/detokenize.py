"""Token ids to printable text, a few at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import lru_cache

from engine.text.tokenizer import TextTokenizer

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TokenBytes:
    """The bytes of every token and which tokens are control tokens, as a table shared by all requests."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.get = lru_cache(maxsize=max(1, tokenizer.vocab_size))(tokenizer.id_to_bytes)
        self.special_tokens = tokenizer.special_tokens
        self.eos_token_ids = frozenset(tokenizer.eos_token_ids)
        self.control_ids = frozenset(
            token_id
            for token_id in tokenizer.special_tokens.values()
            if tokenizer.id_to_bytes(token_id) and not tokenizer.decode([token_id], skip_special_tokens=True)
        )

    def skipped(self, keep: Iterable[str]) -> frozenset[int]:
        """Control ids without those whose spelling is in ``keep``."""
        return self.control_ids - {self.special_tokens[text] for text in keep if text in self.special_tokens}


class IncrementalDetokenizer:
    """Text of one sequence as its tokens arrive. The deltas joined are the bytes decoded at once.

    A character whose bytes are still to come is held back, so no delta holds half a character; bytes that are
    no UTF-8 become U+FFFD as soon as that is certain, at the latest in ``flush``.
    """

    def __init__(
        self, table: TokenBytes, *, skip_special_tokens: bool = True, keep_special: Sequence[str] = ()
    ) -> None:
        self._table = table
        self._get = table.get
        self._skipped = table.skipped(keep_special) if skip_special_tokens else frozenset[int]()
        self._decoder = _new_decoder(errors="replace")

    def skipped_among(self, spellings: Iterable[str]) -> dict[int, str]:
        """Those tokens that are left out of the text and are spelled like one of ``spellings``."""
        ids = self._table.special_tokens
        return {ids[text]: text for text in spellings if ids.get(text) in self._skipped}

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._get(token_id))

    def flush(self) -> str:
        """What is left at the end: U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)
