"""Builds the grammar backend from the tokenizer that the model uses."""

from __future__ import annotations

from collections.abc import Sequence

from engine.grammar.interface import GrammarBackend, GrammarError
from engine.text.tokenizer import TextTokenizer

MARKER_WORDS = (
    "tool", "call", "args", "channel", "message", "constrain", "python_tag", "action", "plugin", "sep", "dsml",
    "invoke", "think", "function", "arg_", "section", "open", "close", "content", "minimax", "escape", '|"|',
)  # fmt: skip
"""Control tokens whose text holds one of these mark up calls or reasoning: a grammar spells them as text.
All others (turn ends, padding, image marks) can never be sampled inside a grammar."""


def forbidden_tokens(tokenizer: TextTokenizer, eos_ids: Sequence[int]) -> list[int]:
    """Ids that a grammar's text can never be made of."""
    forbidden = set(eos_ids)
    for text, token in tokenizer.special_tokens.items():
        if not any(word in text.lower() for word in MARKER_WORDS):
            forbidden.add(token)
    return sorted(forbidden)


def build_backend(tokenizer: TextTokenizer, vocab_size: int, eos_ids: Sequence[int]) -> GrammarBackend:
    """A backend over this tokenizer. ``vocab_size``: width of the logits. Takes some tenths of a second. Raises
    GrammarError where no token ends a text."""
    if not eos_ids:
        raise GrammarError("This model has no token that ends a text, so no grammar can be enforced.")
    tokens = [tokenizer.id_to_bytes(token) for token in range(vocab_size)]
    forbidden = forbidden_tokens(tokenizer, eos_ids)
    from engine.grammar.llguidance_backend import LLGuidanceBackend, VocabularyWrapper

    wrapper = VocabularyWrapper(tokens, forbidden, eos_ids[0], tokenizer.encode_part)
    return LLGuidanceBackend(wrapper, vocab_size, eos_ids)
