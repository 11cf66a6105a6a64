"""What every token stands for in bytes, and which tokens are special. All that a detokenizer needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

SPM_SPACE = "\u2581"
"""SentencePiece writes a space as this character."""

_NO_LATIN = 0xFFFF

TURN_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
"""Special spellings that end an assistant's turn in the model families known here."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """A token matched as a whole in template text.

    control: left out of the text by skip_special_tokens. lstrip, rstrip: it swallows the whitespace beside it.
    """

    text: str
    token_id: int
    control: bool
    lstrip: bool = False
    rstrip: bool = False

    @property
    def is_spaces(self) -> bool:
        """A run of whitespace: some tokenizers add such tokens, yet they are ordinary text."""
        return not self.text.strip(" \t\r\n" + SPM_SPACE)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens by id as the tokenizer spells them, and how those spellings become bytes.

    tokens: index is the id, "" where no token has that id. literals: added tokens that are plain text, such as
    runs of spaces: matched as a whole in any text, a user's too. scheme: ``byte_level`` (GPT-2's alphabet of 256
    printable characters) or ``spm`` (U+2581 for a space, ``<0xAB>`` for a raw byte).
    """

    tokens: Sequence[str]
    scheme: Literal["byte_level", "spm"]
    specials: tuple[SpecialToken, ...] = ()
    literals: tuple[SpecialToken, ...] = ()

    @cached_property
    def special_ids(self) -> Mapping[str, int]:
        return {token.text: token.token_id for token in self.specials}

    @cached_property
    def control_ids(self) -> frozenset[int]:
        return frozenset(token.token_id for token in self.specials if token.control)

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(token.token_id for token in (*self.specials, *self.literals))

    @cached_property
    def _byte_of_char(self) -> Mapping[int, int]:
        """For str.translate: a character of the alphabet to the Latin-1 one of its byte, other Latin-1 to none."""
        return {**dict.fromkeys(range(256), _NO_LATIN), **{ord(char): b for b, char in enumerate(byte_alphabet())}}

    def id_to_bytes(self, token_id: int) -> bytes:
        """The raw bytes of one token; b"" for an id without one."""
        if not 0 <= token_id < len(self.tokens):
            return b""
        token = self.tokens[token_id]
        if token_id in self._added_ids:
            return _raw(token)
        if self.scheme == "spm":
            return _spm_bytes(token)
        try:
            return token.translate(self._byte_of_char).encode("latin-1")
        except UnicodeEncodeError:
            return _raw(token)

    def join(self, ids: Sequence[int], *, skip_special_tokens: bool) -> bytes:
        """The bytes of a sequence, with or without its control tokens."""
        skipped = self.control_ids if skip_special_tokens else frozenset[int]()
        return b"".join([self.id_to_bytes(token_id) for token_id in ids if token_id not in skipped])


def _spm_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return _raw(token.replace(SPM_SPACE, " "))


def _raw(token: str) -> bytes:
    """UTF-8, and the bytes that were none when a file's token was read (lone surrogates from U+DC80 to U+DCFF)."""
    try:
        return token.encode("utf-8", errors="surrogateescape")
    except UnicodeEncodeError:
        return token.encode("utf-8", errors="surrogatepass")


def byte_alphabet() -> str:
    """GPT-2's 256 printable characters: ``byte_alphabet()[b]`` stands for byte b.

    Printable Latin-1 stands for itself, the other bytes follow from U+0100 in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(256))


def turn_end_ids(special_ids: Mapping[str, int], declared: Sequence[int]) -> tuple[int, ...]:
    """End-of-turn ids: the declared ones first, then the known spellings that this vocabulary has.

    Where a model has both ``<|return|>`` and ``<|call|>`` (harmony), its ``<|end|>`` only closes a message.
    """
    harmony = "<|return|>" in special_ids and "<|call|>" in special_ids
    known = [text for text in TURN_ENDS if not (harmony and text == "<|end|>")]
    found = [special_ids[text] for text in known if text in special_ids]
    return tuple(dict.fromkeys([*declared, *found]))
