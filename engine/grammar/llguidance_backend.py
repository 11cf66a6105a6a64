"""The default grammar backend: llguidance (https://github.com/guidance-ai/llguidance).

The only file that imports llguidance at run time. Errors never leave as crashes: llguidance's matchers
enter an error state, which becomes a GrammarError of the one request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.grammar.interface import GrammarError, GrammarMatcher, TokenBitmask
from engine.grammar.source import to_lark
from engine.grammar.triggered import TriggeredMatcher
from engine.messages import GrammarSpec

CACHE_BYTES = 64 << 20
BYTES_PER_SOURCE_BYTE = 60
"""A compiled grammar takes tens of bytes per byte of source; the estimate bounds the cache (H28)."""


def _limits() -> Any:
    import llguidance

    return llguidance.LLParserLimits(verbose_errors=False, max_lexer_states=100_000, max_grammar_size=500_000)


class Validator:
    """Compiles specs over single bytes and takes the first mask. Used in the check worker, never in the engine."""

    def __init__(self) -> None:
        tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
        wrapper = VocabularyWrapper(tokens, [256], 256, lambda text: list(text.encode()))
        self._backend = LLGuidanceBackend(wrapper, 257, (256,))

    def validate(self, spec: GrammarSpec) -> None:
        """Raise GrammarError where the engine could not compile ``spec``."""
        mask = np.zeros(9, dtype=np.int32)
        self._backend.start(self._backend.compile(spec)).fill_mask(mask)


def _first_line(error: str) -> str:
    return error.strip().split("\n", 1)[0][:300]


class VocabularyWrapper:
    """What llguidance wants to know of a tokenizer (its TokenizerWrapper protocol)."""

    def __init__(
        self, tokens: Sequence[bytes], special_ids: Sequence[int], eos_id: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = list(tokens)
        self.special_token_ids = list(special_ids)
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "ignore"))


class CompiledGrammar:
    """A compiled template; matchers are cheap copies of it."""

    __slots__ = ("spec", "template")

    def __init__(self, spec: GrammarSpec, template: Any) -> None:
        self.spec = spec
        self.template = template


class LLGuidanceMatcher:
    """One request's walk through a grammar; see engine.grammar.interface.GrammarMatcher."""

    __slots__ = ("_ended", "_eos_ids", "_matcher")

    def __init__(self, matcher: Any, eos_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids
        self._ended = 0
        """End tokens accepted after the matcher had stopped, which it does not count itself."""

    def fill_mask(self, mask: TokenBitmask) -> bool:
        if self._matcher.is_stopped():
            self._raise_on_error()
            mask[:] = 0
            for token in self._eos_ids:
                mask[token >> 5] |= np.uint32(1 << (token & 31)).astype(np.int32)
            return True
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._raise_on_error()
        return True

    def accept(self, token_id: int) -> bool:
        if self._matcher.is_stopped():
            if token_id not in self._eos_ids:
                return False
            self._ended += 1
            return True
        return bool(self._matcher.try_consume_tokens([token_id]) == 1)

    def accept_all(self, token_ids: list[int]) -> bool:
        return bool(self._matcher.try_consume_tokens(token_ids) == len(token_ids))

    def rollback(self, count: int) -> None:
        virtual = min(count, self._ended)
        self._ended -= virtual
        if count > virtual:
            self._matcher.rollback(count - virtual)

    def forced_tokens(self) -> list[int]:
        if self._matcher.is_stopped():
            return []
        return list(self._matcher.compute_ff_tokens())

    @property
    def terminated(self) -> bool:
        return bool(self._matcher.is_stopped())

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError("The grammar became too complex: " + _first_line(self._matcher.get_error()))


class LLGuidanceBackend:
    """Compiles specs for one tokenizer. Not thread-safe; one per model process."""

    def __init__(self, wrapper: VocabularyWrapper, vocab_size: int, eos_ids: Sequence[int]) -> None:
        import llguidance

        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(wrapper), n_vocab=vocab_size, eos_token=list(eos_ids)
        )
        self._eos_ids = tuple(eos_ids)
        self._id_to_bytes = wrapper.tokens
        self._limits = _limits()
        self._cache: OrderedDict[GrammarSpec, tuple[CompiledGrammar, int]] = OrderedDict()
        self._cached_bytes = 0

    def compile(self, spec: GrammarSpec) -> object:
        """A CompiledGrammar, from the cache where the same spec was compiled lately. Raises GrammarError."""
        cached = self._cache.get(spec)
        if cached is not None:
            self._cache.move_to_end(spec)
            return cached[0]
        import llguidance

        template = llguidance.LLMatcher(self._tokenizer, to_lark(spec), log_level=0, limits=self._limits)
        if template.is_error():
            raise GrammarError(_first_line(template.get_error()))
        compiled = CompiledGrammar(spec, template)
        self._remember(compiled)
        return compiled

    def matcher(self, compiled: object) -> GrammarMatcher:
        """A fresh matcher at the grammar's start."""
        assert isinstance(compiled, CompiledGrammar)
        spec = compiled.spec
        if not spec.triggers and not spec.start_after:
            return self.start(compiled)
        return TriggeredMatcher(spec, self._id_to_bytes, lambda: self.start(compiled), self._tokenize)

    @property
    def cached_bytes(self) -> int:
        return self._cached_bytes

    def start(self, compiled: object) -> LLGuidanceMatcher:
        """A matcher over the whole text: triggers and start_after are not looked at."""
        assert isinstance(compiled, CompiledGrammar)
        return LLGuidanceMatcher(compiled.template.deep_copy(), self._eos_ids)

    def _tokenize(self, text: bytes) -> list[int]:
        return list(self._tokenizer.tokenize_bytes(text, parse_special=True)) if text else []

    def _remember(self, compiled: CompiledGrammar) -> None:
        size = len(compiled.spec.source) * BYTES_PER_SOURCE_BYTE + 4096
        self._cache[compiled.spec] = (compiled, size)
        self._cached_bytes += size
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, (_, freed) = self._cache.popitem(last=False)
            self._cached_bytes -= freed
