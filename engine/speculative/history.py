"""What finished requests wrote, to be drafted again (Oliaro et al., 2024, SuffixDecoding).

Agents repeat themselves over requests more than within one: the same calls with the same keys, the same sentence before
them, the same code with one line changed.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from engine.speculative.ngram import MAX_MATCH, NgramIndex

END: Final = -1
"""Stands between the outputs of two requests; no token."""


class History:
    """The newest outputs of one tenant: between MAX_TOKENS and twice as many tokens."""

    MAX_TOKENS = 16_384

    __slots__ = ("_newer", "_older")

    def __init__(self) -> None:
        self._newer = NgramIndex([])
        self._older: NgramIndex | None = None

    def add(self, tokens: list[int], prompt_len: int) -> None:
        """Take the output of a request; the prompt's last tokens go with it, so that its first token has a past."""
        start = max(prompt_len - MAX_MATCH, len(tokens) - self.MAX_TOKENS, 0)
        if len(self._newer.tokens) + len(tokens) - start > self.MAX_TOKENS:
            self._newer, self._older = NgramIndex([]), self._newer
        self._newer.tokens += tokens[start:]
        self._newer.tokens.append(END)
        self._newer.update()

    def find(self, sequence: list[int]) -> tuple[list[int], int, int]:
        """The tokens in which the longest match of the end of ``sequence`` was found, where it continues there, and how
        many tokens match (0: none)."""
        place, match = self._newer.find(sequence)
        if self._older is not None and match < MAX_MATCH:
            other, longer = self._older.find(sequence)
            if longer > match:
                return self._older.tokens, other, longer
        return self._newer.tokens, place, match


class Histories:
    """A History for each of the MAX_TENANTS tenants that wrote last: none sees, or is sped up by, another's text."""

    MAX_TENANTS = 8

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, History] = OrderedDict()

    def get(self, tenant: str) -> History:
        history = self._by_tenant.pop(tenant, None) or History()
        self._by_tenant[tenant] = history
        if len(self._by_tenant) > self.MAX_TENANTS:
            self._by_tenant.popitem(last=False)
        return history
