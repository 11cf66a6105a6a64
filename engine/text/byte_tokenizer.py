"""The tokenizer of ``--model hash-lm``: one id per byte, then the special tokens that chat formats need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

SPECIAL_TOKENS = ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<think>", "</think>")
FIRST_SPECIAL = 256
EOS_TOKEN = "<|im_end|>"
EOS_ID = FIRST_SPECIAL + SPECIAL_TOKENS.index(EOS_TOKEN)
VOCAB_SIZE = FIRST_SPECIAL + len(SPECIAL_TOKENS)


class ByteTokenizer:
    """Implements TextTokenizer. Ids 0..255 are UTF-8 bytes; lone surrogates become U+FFFD."""

    def __init__(self) -> None:
        self._special = {text: FIRST_SPECIAL + index for index, text in enumerate(SPECIAL_TOKENS)}
        self._pattern = re.compile("|".join(re.escape(text) for text in SPECIAL_TOKENS))

    @property
    def vocab_size(self) -> int:
        return VOCAB_SIZE

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self._special

    @property
    def chat_template(self) -> str | None:
        return None

    @property
    def bos_token(self) -> str | None:
        return None

    @property
    def eos_token(self) -> str | None:
        return EOS_TOKEN

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (EOS_ID,)

    def encode(self, text: str, *, guard: str = "", add_special_tokens: bool = False) -> list[int]:
        """Ids of a rendered prompt; ``guard`` inside a special spelling makes it ordinary text and disappears.
        There is no BOS, so ``add_special_tokens`` adds nothing."""
        ids: list[int] = []
        start = 0
        for match in self._pattern.finditer(text):
            ids += self._bytes(text[start : match.start()], guard)
            ids.append(self._special[match.group()])
            start = match.end()
        return ids + self._bytes(text[start:], guard)

    def encode_part(self, text: str) -> list[int]:
        return self.encode(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        keep = ids if not skip_special_tokens else [token for token in ids if token < FIRST_SPECIAL]
        return b"".join(self.id_to_bytes(token) for token in keep).decode("utf-8", errors="replace")

    def id_to_bytes(self, token_id: int) -> bytes:
        if 0 <= token_id < FIRST_SPECIAL:
            return bytes((token_id,))
        if FIRST_SPECIAL <= token_id < VOCAB_SIZE:
            return SPECIAL_TOKENS[token_id - FIRST_SPECIAL].encode()
        return b""

    def _bytes(self, text: str, guard: str) -> list[int]:
        if guard:
            text = text.replace(guard, "")
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            return list(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode())
