"""Constrained decoding behind one interface, so that a backend is one file.

A compiled grammar is immutable and shared; a matcher is one request's walk through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from engine.messages import GrammarSpec

if TYPE_CHECKING:  # the API process checks grammars and needs no numpy
    import numpy as np
    import numpy.typing as npt

TokenBitmask: TypeAlias = "npt.NDArray[np.int32]"
"""[ceil(vocab_size / 32)] int32, bit i of word w allows token 32 * w + i (xgrammar's and llguidance's layout)."""


class GrammarError(ValueError):
    """The grammar cannot be compiled, or not be followed any further: it is the fault of the request that brought it.
    Every method of a matcher may raise it; the matcher is of no use afterwards."""


class GrammarMatcher(Protocol):
    """One request's state. All token ids are model ids."""

    def fill_mask(self, mask: TokenBitmask) -> bool:
        """Write the allowed tokens into ``mask``; False where every token is allowed (mask left as it was)."""
        ...

    def accept(self, token_id: int) -> bool:
        """Advance over one token. False where the grammar does not allow it; the state is then unchanged."""
        ...

    def copy(self) -> GrammarMatcher:
        """One that goes its own way from here, to try guesses on: whatever becomes of it, this one is not affected."""
        ...

    def forced_tokens(self) -> list[int]:
        """Tokens that are the only continuation from here, in order; [] where there is a choice."""
        ...

    @property
    def terminated(self) -> bool:
        """The grammar allows nothing but the end."""
        ...


class GrammarBackend(Protocol):
    def compile(self, spec: GrammarSpec) -> object:
        """Raise GrammarError, or return a compiled grammar for ``matcher``."""
        ...

    def is_compiled(self, spec: GrammarSpec) -> bool:
        """``compile`` has it ready."""
        ...

    def matcher(self, compiled: object) -> GrammarMatcher: ...
