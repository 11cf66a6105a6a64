"""A tokenizer from a GGUF file's metadata: GPT-2 style BPE and SentencePiece BPE."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from engine.text.bpe_tokenizer import BPETokenizer, SpaceBefore, TextFacts
from engine.text.pre_tokenizers import PRE_TOKENIZERS, PreTokenizer, apply
from engine.text.vocabulary import SPM_SPACE, SpecialToken, Vocabulary, turn_end_ids
from engine.weights.gguf_header import GGUFError, read_metadata

if TYPE_CHECKING:
    from tokenizers import Tokenizer

T = TypeVar("T")

_PREFIX = "tokenizer."
_MERGES = "tokenizer.ggml.merges"


class TokenType(IntEnum):
    """``tokenizer.ggml.token_type``."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def load_gguf_tokenizer(path: str | Path) -> BPETokenizer:
    """The tokenizer that a GGUF file describes. Raises GGUFError where it is of a kind not known here.

    The merge rules stay in the file until a text is encoded: processes that only decode never need them.
    """
    values = read_metadata(path, wanted=lambda key: key.startswith(_PREFIX) and key != _MERGES)
    return tokenizer_from_metadata(values, lambda: _merges(read_metadata(path, wanted=_MERGES.__eq__)))


def tokenizer_from_metadata(values: dict[str, Any], read_merges: Callable[[], list[str]] | None = None) -> BPETokenizer:
    """``values``: the ``tokenizer.*`` keys of a GGUF file, arrays as lists. ``read_merges`` gives the merge rules where
    ``values`` does not hold them."""
    model = values.get("tokenizer.ggml.model")
    tokens = _list(values, "tokenizer.ggml.tokens", str)
    if not tokens:
        raise GGUFError("the file holds no tokenizer (tokenizer.ggml.tokens is missing).")
    types = _list(values, "tokenizer.ggml.token_type", int) or [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise GGUFError("tokenizer.ggml.token_type and tokenizer.ggml.tokens differ in length.")
    if model == "gpt2":
        return _byte_level(values, tokens, types, read_merges)
    if model == "llama":
        return _sentencepiece(values, tokens, types)
    raise GGUFError(f"tokenizer model {model!r} is not supported (gpt2 and llama are).")


def _list(values: dict[str, Any], key: str, kind: type[T]) -> list[T]:
    """The list under ``key``, [] where there is none. Raises GGUFError where it holds anything else."""
    value = values.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(issubclass(found, kind) for found in set(map(type, value))):
        raise GGUFError(f"{key} is no list of {kind.__name__}.")
    return value


def _merges(values: dict[str, Any]) -> list[str]:
    merges = _list(values, _MERGES, str)
    if values.get(_MERGES) is None:
        raise GGUFError(f"the file holds no merges ({_MERGES} is missing).")
    return merges


def _byte_level(
    values: dict[str, Any], tokens: list[str], types: Sequence[int], read_merges: Callable[[], list[str]] | None
) -> BPETokenizer:
    name = str(values.get("tokenizer.ggml.pre", "default"))
    rule = PRE_TOKENIZERS.get(name)
    if rule is None:
        raise GGUFError(f"pre-tokenizer {name!r} is not known; known are {', '.join(sorted(PRE_TOKENIZERS))}.")
    if read_merges is None:
        _merges(values)
        read_merges = partial(_merges, values)
    vocabulary = Vocabulary(tokens, "byte_level", *_added(tokens, types))
    build = partial(_build_byte_level, rule, tokens, types, read_merges)
    return BPETokenizer(vocabulary, _facts(values, vocabulary, rule.add_bos), build)


def _build_byte_level(
    rule: PreTokenizer, tokens: list[str], types: Sequence[int], read_merges: Callable[[], list[str]]
) -> Tokenizer:
    from tokenizers import Tokenizer, models

    normal = int(TokenType.NORMAL)
    vocab = {token: index for index, (token, kind) in enumerate(zip(tokens, types)) if kind == normal}
    merges = [_merge(line) for line in read_merges()]
    try:
        model = models.BPE(vocab, merges)
    except Exception:  # the library has no error of its own; it tells of a token that a merge names
        with _as_gguf_error():
            model = models.BPE(_with_merge_parts(vocab, merges, tokens), merges)
    tokenizer = Tokenizer(model)
    tokenizer.model.ignore_merges = rule.ignore_merges
    apply(rule, tokenizer)
    return tokenizer


@contextmanager
def _as_gguf_error() -> Iterator[None]:
    """What the library says of tokens and merges that make no tokenizer, as one line."""
    try:
        yield
    except Exception as error:
        reason = str(error).partition("\n")[0]
        raise GGUFError(f"the tokens and merges make no tokenizer: {reason}") from None


def _with_merge_parts(vocab: dict[str, int], merges: list[tuple[str, str]], tokens: list[str]) -> dict[str, int]:
    """``vocab``, and any other token that a merge names: the library insists on knowing it. Takes 0.1 s, and most
    files need none."""
    needed = {part for left, right in merges for part in (left, right, left + right)} - vocab.keys()
    if needed:
        vocab.update({token: index for index, token in enumerate(tokens) if token in needed})
    return vocab


def _merge(line: str) -> tuple[str, str]:
    """One merge rule. Its parts never hold a space, but the first may begin with one in odd files."""
    left, _, right = line.partition(" ")
    if left:
        return left, right
    left, _, right = line[1:].partition(" ")
    return " " + left, right


def _sentencepiece(values: dict[str, Any], tokens: list[str], types: Sequence[int]) -> BPETokenizer:
    scores = _list(values, "tokenizer.ggml.scores", float)
    if len(scores) != len(tokens):
        raise GGUFError("the file holds no scores for its tokens (tokenizer.ggml.scores).")
    vocabulary = Vocabulary(tokens, "spm", *_added(tokens, types))
    spaced = bool(values.get("tokenizer.ggml.add_space_prefix", True))
    facts = _facts(values, vocabulary, True, space_before="every" if spaced else "none")
    return BPETokenizer(vocabulary, facts, partial(_build_sentencepiece, tokens, types, scores))


def _build_sentencepiece(tokens: list[str], types: Sequence[int], scores: Sequence[float]) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers

    ordinary = (TokenType.NORMAL, TokenType.BYTE, TokenType.UNKNOWN)
    vocab = {token: index for index, token in enumerate(tokens) if types[index] in ordinary}
    pieces = {token: scores[index] for token, index in vocab.items() if types[index] == TokenType.NORMAL}
    unknown = next((token for token, index in vocab.items() if types[index] == TokenType.UNKNOWN), None)
    merges = merges_from_scores(pieces, vocab)
    with _as_gguf_error():
        model = models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", SPM_SPACE)
    return tokenizer


def merges_from_scores(pieces: dict[str, float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """BPE merges in the order in which SentencePiece joins pairs: best score first, then the lower ids.

    SentencePiece's BPE keeps no merges; joining the pair whose result scores best is the same thing.
    """
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in pieces.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in pieces and right in pieces:
                found.append((-score, ids[left], ids[right], left, right))
    found.sort()
    return [(left, right) for *_, left, right in found]


def _added(tokens: list[str], types: Sequence[int]) -> tuple[tuple[SpecialToken, ...], tuple[SpecialToken, ...]]:
    """Special tokens (control tokens and user-defined markers), and literals (user-defined runs of spaces)."""
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED)
    found = [
        SpecialToken(token, index, control=types[index] == TokenType.CONTROL)
        for index, token in enumerate(tokens)
        if types[index] in kinds and token
    ]
    specials = tuple(token for token in found if not token.is_spaces)
    return specials, tuple(token for token in found if token.is_spaces)


def _facts(
    values: dict[str, Any], vocabulary: Vocabulary, add_bos: bool, *, space_before: SpaceBefore = "none"
) -> TextFacts:
    def token_id(name: str) -> int | None:
        value = values.get(f"tokenizer.ggml.{name}_token_id")
        return value if isinstance(value, int) and 0 <= value < len(vocabulary.tokens) else None

    bos, eos = token_id("bos"), token_id("eos")
    declared = [found for name in ("eos", "eot", "eom") if (found := token_id(name)) is not None]
    starts = bos is not None and bool(values.get("tokenizer.ggml.add_bos_token", add_bos))
    ends = eos is not None and bool(values.get("tokenizer.ggml.add_eos_token", False))
    template = values.get("tokenizer.chat_template")
    return TextFacts(
        chat_template=template if isinstance(template, str) and template else None,
        bos_id=bos,
        eos_id=eos,
        eos_token_ids=turn_end_ids(vocabulary.special_ids, declared),
        prefix_ids=(bos,) if starts and bos is not None else (),
        suffix_ids=(eos,) if ends and eos is not None else (),
        space_before=space_before,
    )
