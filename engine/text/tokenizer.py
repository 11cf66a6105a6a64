"""The tokenizer as text processes see it: `tokenizers` only, no torch, no transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class TextTokenizer(Protocol):
    """Text to ids and back. Special tokens come only from text that the template wrote, never from a user's."""

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows (may be less than the width of the logits)."""
        ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Every added token's text and id, control tokens and markers such as ``<tool_call>`` alike."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's own jinja template, None where it has none."""
        ...

    @property
    def bos_token(self) -> str | None: ...

    @property
    def eos_token(self) -> str | None: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, *, guard: str = "", add_special_tokens: bool = False) -> list[int]:
        """Ids of a rendered prompt. Special spellings broken up by ``guard`` become ordinary tokens, and the
        guard itself disappears."""
        ...

    def encode_part(self, text: str) -> list[int]:
        """Ids of a text that goes on from another: their bytes are its bytes, with no space put in front."""
        ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...

    def id_to_bytes(self, token_id: int) -> bytes:
        """The raw bytes that a token stands for (b"" for ids the tokenizer does not know)."""
        ...
