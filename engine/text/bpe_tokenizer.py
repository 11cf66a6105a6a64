"""A TextTokenizer over the `tokenizers` library, in which only a template's text can name special tokens."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from engine.text.vocabulary import SPM_SPACE, SpecialToken, Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


SEARCHED_AT_ONCE = 1 << 16
"""Characters."""

SpaceBefore = Literal["none", "first", "spaceless", "every"]
"""``first``: the piece that begins the text; ``spaceless``: every piece; both where the piece has no space there.
``every``: every piece, whatever it begins with."""


@dataclass(frozen=True, slots=True)
class TextFacts:
    """What a model's files say about its text besides the vocabulary.

    prefix_ids, suffix_ids: what add_special_tokens puts around a text. space_before: which of the pieces between
    added tokens are encoded as if a space stood before them (SentencePiece's dummy prefix), see ``SpaceBefore``.
    """

    chat_template: str | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()
    space_before: SpaceBefore = "none"


class BPETokenizer:
    """Encodes with a tokenizer that knows no added tokens; special spellings are split off before it.

    ``build`` makes that tokenizer. It runs on the first encode: a process that only turns ids into text never pays
    for it.
    """

    def __init__(self, vocabulary: Vocabulary, facts: TextFacts, build: Callable[[], Tokenizer]) -> None:
        self.vocabulary = vocabulary
        self._facts = facts
        self._build = build
        self._built: Tokenizer | None = None
        self._build_lock = threading.Lock()

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.tokens)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self.vocabulary.special_ids

    @property
    def chat_template(self) -> str | None:
        return self._facts.chat_template

    @property
    def bos_token(self) -> str | None:
        return self._spelling(self._facts.bos_id)

    @property
    def eos_token(self) -> str | None:
        return self._spelling(self._facts.eos_id)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._facts.eos_token_ids

    def encode(self, text: str, *, guard: str = "", add_special_tokens: bool = False) -> list[int]:
        ids = self._encode_pieces(self._split(text, guard), self._facts.space_before)
        return [*self._facts.prefix_ids, *ids, *self._facts.suffix_ids] if add_special_tokens else ids

    def encode_part(self, text: str) -> list[int]:
        return self._encode_pieces(self._split(text, ""), "none")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        text = self.vocabulary.join(ids, skip_special_tokens=skip_special_tokens).decode("utf-8", errors="replace")
        return text if self._facts.space_before == "none" else text.removeprefix(" ")

    def id_to_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.id_to_bytes(token_id)

    def _spelling(self, token_id: int | None) -> str | None:
        if token_id is None or not 0 <= token_id < len(self.vocabulary.tokens):
            return None
        return self.vocabulary.tokens[token_id] or None

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return _any_of([*self.vocabulary.specials, *self.vocabulary.literals])

    @cached_property
    def _special_pattern(self) -> re.Pattern[str] | None:
        return _any_of(self.vocabulary.specials)

    @cached_property
    def _added(self) -> Mapping[str, SpecialToken]:
        return {token.text: token for token in (*self.vocabulary.specials, *self.vocabulary.literals)}

    @cached_property
    def _special_id_set(self) -> frozenset[int]:
        return frozenset(self.vocabulary.special_ids.values())

    def _split(self, text: str, guard: str) -> list[str | int]:
        """Text and added ids in order. A spelling that ``guard`` breaks up does not match; then the guard goes."""
        pieces: list[str | int] = []
        at, strip_next = 0, False

        def add_text(piece: str, strip_end: bool) -> None:
            piece = piece.replace(guard, "") if guard else piece
            piece = piece.lstrip() if strip_next else piece
            piece = piece.rstrip() if strip_end else piece
            if piece:
                pieces.append(piece)

        for match in self._matches(text):
            token = self._added[match[0]]
            add_text(text[at : match.start()], token.lstrip)
            pieces.append(token.token_id)
            at, strip_next = match.end(), token.rstrip
        add_text(text[at:], False)
        return pieces

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        """Added tokens in ``text``, the leftmost longest ones. Searched in parts, because a search holds up every
        thread of the process, and millions of characters that look like the beginnings of tokens take half a second."""
        if self._pattern is None:
            return
        longest = max(map(len, self._added))
        at = 0
        while at < len(text):
            end = at + SEARCHED_AT_ONCE
            match = self._pattern.search(text, at, end + longest - 1)
            if match is None or match.start() >= end:  # one that begins later may be cut short
                at = end
            else:
                yield match
                at = match.end()

    def _encode_pieces(self, pieces: list[str | int], rule: SpaceBefore) -> list[int]:
        """Ids of a split text."""
        plain = [_spaced(piece, rule, index == 0) for index, piece in enumerate(pieces) if isinstance(piece, str)]
        encoded = iter(self._encode_plain_pieces(plain))
        ids: list[int] = []
        for piece in pieces:
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(next(encoded))
        return ids

    def _encode_plain_pieces(self, pieces: list[str]) -> list[list[int]]:
        if not pieces:
            return []
        tokenizer = self._plain()
        encodings = tokenizer.encode_batch_fast([_encodable(piece) for piece in pieces], add_special_tokens=False)
        return [self._without_specials(piece, encoding.ids) for piece, encoding in zip(pieces, encodings)]

    def _without_specials(self, piece: str, ids: list[int]) -> list[int]:
        """``ids``, unless the model itself merged plain text into a special token: then halve those spellings.

        A unigram model, or a BPE model whose vocabulary holds its control tokens, can do that.
        """
        if self._special_id_set.isdisjoint(ids) or self._special_pattern is None:
            return ids
        parts: list[str] = []
        at = 0
        for match in self._special_pattern.finditer(piece):
            middle = match.start() + max(1, len(match[0]) // 2)
            parts.append(piece[at:middle])
            at = middle
        parts.append(piece[at:])
        encodings = self._plain().encode_batch_fast(
            [_encodable(part) for part in parts if part], add_special_tokens=False
        )
        flat = [token_id for encoding in encodings for token_id in encoding.ids]
        return [token_id for token_id in flat if token_id not in self._special_id_set]

    def _plain(self) -> Tokenizer:
        with self._build_lock:
            if self._built is None:
                self._built = self._build()
            return self._built


def _spaced(piece: str, rule: SpaceBefore, is_first: bool) -> str:
    """The piece, with the space in front of it that it is encoded with."""
    wanted = is_first if rule == "first" else rule != "none"
    if not wanted or (rule != "every" and piece.startswith((" ", SPM_SPACE))):
        return piece
    return " " + piece


def _any_of(tokens: Sequence[SpecialToken]) -> re.Pattern[str] | None:
    """A pattern of these spellings, longest first, so that the leftmost longest one wins; None for no tokens."""
    spellings = sorted((token.text for token in tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


def _encodable(text: str) -> str:
    """Lone surrogates, which no UTF-8 can carry, become U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", errors="surrogatepass").decode("utf-8", errors="replace")
    return text
