"""The default grammar backend: llguidance (https://github.com/guidance-ai/llguidance).

The only file that imports llguidance at run time. Errors never leave as crashes: llguidance's matchers
enter an error state, which becomes a GrammarError of the one request.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.grammar.interface import GrammarError, GrammarMatcher, TokenBitmask
from engine.grammar.source import to_lark
from engine.grammar.triggered import TriggeredMatcher
from engine.messages import GrammarSpec

CACHE_BYTES = 64 << 20
MAX_ROW_ITEMS = 4_000
"""Parser items after one byte. The time of a step grows with their square, up to 0.1 s here; ordinary grammars have
tens, and a union of N objects that all share their first properties up to 15 N."""
WALKS, WALK_BYTES, WALK_SECONDS = 3, 100, 0.5
COMPILE_CPU_SECONDS = 0.5
"""The engine compiles once more what passed, and everybody waits for it that long."""
STRUCTURE = frozenset(b'{}[]":,<>/')
BYTES_PER_GRAMMAR, BYTES_PER_SOURCE_BYTE = 128 << 10, 80
"""What a compiled grammar takes, measured from 84 bytes of source to 16 KB; the estimate bounds the cache."""


def _limits() -> Any:
    import llguidance

    return llguidance.LLParserLimits(
        verbose_errors=False,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        max_items_in_row=MAX_ROW_ITEMS,
        step_max_items=200_000,
        step_lexer_fuel=1_000_000,
    )


class Validator:
    """Compiles specs over single bytes and walks a little way into them. For the check worker, not the engine.

    The walks find what compiling does not: a row of parser items is only as wide as the text so far makes it.
    What depends on the vocabulary (the lexer's fuel for one mask) is found at run time and ends that request.
    """

    def __init__(self) -> None:
        tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
        wrapper = VocabularyWrapper(tokens, [256], 256, lambda text: list(text.encode()))
        self._backend = LLGuidanceBackend(wrapper, 257, (256,))

    def validate(self, spec: GrammarSpec) -> None:
        """Raise GrammarError where the engine could not compile ``spec``, or not follow it."""
        start = time.process_time()
        compiled = self._backend.compile(spec)
        if time.process_time() - start > COMPILE_CPU_SECONDS:
            raise GrammarError(f"The grammar took longer than {COMPILE_CPU_SECONDS:g} s of CPU time to compile.")
        deadline = time.monotonic() + WALK_SECONDS
        for seed in range(WALKS):
            self._walk(self._backend.start(compiled), random.Random(seed), deadline)

    @staticmethod
    def _walk(matcher: LLGuidanceMatcher, choose: random.Random, deadline: float) -> None:
        """Follow allowed bytes, those that end something first: structure is found, not long strings."""
        for _ in range(WALK_BYTES):
            mask = np.zeros(9, dtype=np.int32)
            matcher.fill_mask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little", count=256)).tolist()
            if not allowed or time.monotonic() > deadline:
                return
            closing = [byte for byte in allowed if byte in STRUCTURE]
            matcher.accept(choose.choice(closing if closing and choose.random() < 0.5 else allowed))


def _first_line(error: str) -> str:
    """The first line; a regex parser's says nothing, its reason stands in the one that begins with ``error:``."""
    first, *rest = error.strip().split("\n")
    if first.endswith("regex parse error:"):
        first += next((line.removeprefix("error:") for line in rest if line.startswith("error: ")), "")
    return first[:300]


def _explained(error: str) -> str:
    """What stopped a matcher, and what its author can do. ``NoExtension``: nothing at all may follow."""
    if "NoExtension" in error:
        return (
            "No text satisfies the grammar: it leads to a place where nothing may follow. Look for parts that exclude "
            "each other, an empty character class, or a rule that only calls itself."
        )
    return (
        f"The grammar became too complex: {_first_line(error)}. It needs fewer alternatives or optional parts, smaller "
        "bounds, or a recursion that ends."
    )


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

    __slots__ = ("_eos_ids", "_matcher")

    def __init__(self, matcher: Any, eos_ids: Sequence[int]) -> None:
        self._matcher = matcher
        self._eos_ids = eos_ids

    def fill_mask(self, mask: TokenBitmask) -> bool:
        if self.terminated:
            mask[:] = 0
            for token in self._eos_ids:
                mask[token >> 5] |= np.uint32(1 << (token & 31)).astype(np.int32)
            return True
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._raise_on_error()
        return True

    def accept(self, token_id: int) -> bool:
        if self.terminated:
            return token_id in self._eos_ids
        return self.accept_all([token_id])

    def accept_all(self, token_ids: list[int]) -> bool:
        taken = self._matcher.try_consume_tokens(token_ids)
        self._raise_on_error()
        return bool(taken == len(token_ids))

    def copy(self) -> LLGuidanceMatcher:
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._eos_ids)

    def forced_tokens(self) -> list[int]:
        if self.terminated:
            return []
        tokens = list(self._matcher.compute_ff_tokens())
        self._raise_on_error()
        return tokens

    @property
    def terminated(self) -> bool:
        """llguidance calls a matcher stopped in its error state too; here that is a GrammarError."""
        if not self._matcher.is_stopped():
            return False
        self._raise_on_error()
        return True

    def _raise_on_error(self) -> None:
        if self._matcher.is_error():
            raise GrammarError(_explained(self._matcher.get_error()))


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

    def is_compiled(self, spec: GrammarSpec) -> bool:
        return spec in self._cache

    def matcher(self, compiled: object) -> GrammarMatcher:
        """A fresh matcher at the grammar's start."""
        assert isinstance(compiled, CompiledGrammar)
        spec = compiled.spec
        if not spec.triggers and not spec.triggers_at_start and not spec.start_after:
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
        size = len(compiled.spec.source) * BYTES_PER_SOURCE_BYTE + BYTES_PER_GRAMMAR
        self._cache[compiled.spec] = (compiled, size)
        self._cached_bytes += size
        while self._cached_bytes > CACHE_BYTES and len(self._cache) > 1:
            _, (_, freed) = self._cache.popitem(last=False)
            self._cached_bytes -= freed
