"""Guesses of what a request writes next: from what was written before or from a draft head, whichever is worth more."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from engine.speculative.acceptance import HEAD, HISTORY, OWN, Acceptance, head_kind
from engine.speculative.history import END, Histories, History
from engine.speculative.ngram import MAX_MATCH, NgramIndex

if TYPE_CHECKING:
    from engine.grammar.interface import GrammarMatcher

logger = logging.getLogger(__name__)


class Draft(NamedTuple):
    """Guesses of what follows, for each the chance that it and all before it stand, and whether a draft head made
    them."""

    tokens: tuple[int, ...] = ()
    chances: tuple[float, ...] = ()
    from_head: bool = False

    def cut(self, length: int) -> Draft:
        """Its first ``length`` guesses."""
        return Draft(self.tokens[:length], self.chances[:length], self.from_head)


class Guesses(NamedTuple):
    """Tokens in a row and the kind of each (engine.speculative.acceptance)."""

    tokens: list[int]
    kinds: list[int]


class Drafter:
    """One request's drafts. It learns from every token that comes what a guess is worth, drafted or not."""

    __slots__ = (
        "_acceptance",
        "_failed",
        "_guesses",
        "_hint",
        "_hint_place",
        "_history",
        "_index",
        "_max_length",
        "_size",
        "_tokens",
    )

    def __init__(
        self, tokens: list[int], max_length: int, acceptance: Acceptance, history: History | None = None
    ) -> None:
        """``tokens`` is the sequence itself; ``acceptance`` is what all requests have seen."""
        self._tokens = tokens
        self._index = NgramIndex(tokens)
        self._history = history
        self._max_length = max_length
        self._acceptance = acceptance.part()
        self._guesses: list[Guesses] = []
        self._hint = (-1, 0.0)
        self._hint_place = self._size = 0
        self._failed = False

    def hint(self, token: int, probability: float) -> None:
        """What a draft head makes of the step that wrote the last token: what may follow, and how likely it is. Counts
        while that token is the last: others may be forced behind it."""
        self._hint, self._hint_place = (token, probability), len(self._tokens)

    def propose(self, grammar: GrammarMatcher | None = None) -> Draft:
        """Up to ``max_length`` guesses of what follows the last token: of those at hand, the ones of which the first is
        likeliest to stand, as far as ``grammar`` allows them. One that fails never guesses again: its request goes on
        without."""
        if self._failed:
            return Draft()
        try:
            return self._best(grammar)
        except Exception:
            logger.exception("drafting failed for a request; it goes on without")
            self._failed = True
            return Draft()

    def _best(self, grammar: GrammarMatcher | None) -> Draft:
        self._learn()
        self._size = len(self._tokens)
        sources = [self._from_own(), self._from_history()]
        if self._hint_place == self._size:
            token, probability = self._hint
            sources.append(Guesses([token], [head_kind(probability)]))
        if grammar is not None:
            sources = [_allowed(grammar, guesses) for guesses in sources]
        self._guesses = [guesses for guesses in sources if guesses.tokens]
        drafts = [self._draft(guesses) for guesses in self._guesses]
        if not drafts:
            return Draft()
        best = max(drafts, key=lambda draft: draft.chances[0])
        agreeing = (draft for draft in drafts if draft.tokens[0] == best.tokens[0])
        longest = max(agreeing, key=lambda draft: sum(draft.chances) / draft.chances[0])
        surer = best.chances[0] / longest.chances[0]
        return Draft(longest.tokens, tuple(surer * chance for chance in longest.chances), best.from_head)

    def _draft(self, guesses: Guesses) -> Draft:
        chance, chances = 1.0, []
        for kind in guesses.kinds:
            chance *= self._acceptance.chance(kind)
            chances.append(chance)
        return Draft(tuple(guesses.tokens), tuple(chances), guesses.kinds[0] >= HEAD)

    def _from_own(self) -> Guesses:
        """A match that runs into the sequence's end continues with the guesses themselves (a loop is predicted
        whole)."""
        self._index.update()
        tokens = self._tokens
        place, match = self._index.find(tokens)
        guesses: list[int] = []
        if match:
            for index in range(place, place + self._max_length):
                guesses.append(tokens[index] if index < self._size else guesses[index - self._size])
        return Guesses(guesses, _kinds(OWN, match, len(guesses)))

    def _from_history(self) -> Guesses:
        if self._history is None:
            return Guesses([], [])
        tokens, place, match = self._history.find(self._tokens)
        guesses = tokens[place : place + self._max_length] if match else []
        if END in guesses:
            del guesses[guesses.index(END) :]
        return Guesses(guesses, _kinds(HISTORY, match, len(guesses)))

    def _learn(self) -> None:
        """Compare the last guesses with what came."""
        if len(self._tokens) == self._size:
            return
        came = self._tokens[self._size : self._size + self._max_length]
        for guesses in self._guesses:
            for guess, kind, token in zip(*guesses, came, strict=False):
                self._acceptance.observe(kind, guess == token)
                if guess != token:
                    break


def _allowed(grammar: GrammarMatcher, guesses: Guesses) -> Guesses:
    """Its first guesses, as far as the grammar allows them."""
    if not guesses.tokens:
        return guesses
    trial, count = grammar.copy(), 0
    while count < len(guesses.tokens) and not trial.terminated and trial.accept(guesses.tokens[count]):
        count += 1
    return Guesses(guesses.tokens[:count], guesses.kinds[:count])


def _kinds(source: int, match: int, count: int) -> list[int]:
    """Every guess that stands makes the match longer by one."""
    return [source + min(match + offset, MAX_MATCH) - 1 for offset in range(count)]


class HeadGate:
    """Whether the draft head is asked for guesses: not where steps hold many sequences, and not while nothing that it
    says is worth a place in a step."""

    MAX_ROWS = 4
    PATIENCE = 32
    """Steps with guesses of which none was drafted."""
    PAUSE = 512
    """Steps until it is asked again."""

    def __init__(self) -> None:
        self._idle = 0

    def is_open(self, num_rows: int) -> bool:
        return num_rows <= self.MAX_ROWS and self._idle < self.PATIENCE

    def observe(self, *, drafted: bool) -> None:
        """After each step of up to MAX_ROWS rows: whether such a guess was drafted."""
        self._idle = 0 if drafted or self._idle >= self.PATIENCE + self.PAUSE else self._idle + 1


class Drafters:
    """What the drafters of all requests share. ``max_length`` 0: nothing is drafted."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self._acceptance = Acceptance()
        self._histories = Histories()
        self._gate = HeadGate()

    def new(self, tokens: list[int], tenant: str) -> Drafter | None:
        """For a request whose tokens these are."""
        if self.max_length == 0:
            return None
        try:
            return Drafter(tokens, self.max_length, self._acceptance, self._histories.get(tenant))
        except Exception:
            logger.exception("a request goes on without drafts")
            return None

    def finished(self, tokens: list[int], prompt_len: int, tenant: str) -> None:
        """A request has ended."""
        if self.max_length == 0 or len(tokens) == prompt_len:
            return
        try:
            self._histories.get(tenant).add(tokens, prompt_len)
        except Exception:
            logger.exception("what was written so far is forgotten")
            self.forget()

    def forget(self) -> None:
        """All that was written so far; requests under way keep what they have."""
        self._histories = Histories()

    def wants_guesses(self, sampled: Iterable[bool]) -> bool:
        """Whether the draft head is asked in a step in which these rows are sampled."""
        return self.max_length > 0 and self._gate.is_open(sum(sampled))

    def observe(self, num_rows: int, *, drafted: bool) -> None:
        """A step of so many decoding rows is scheduled; whether one has a guess of the head's."""
        if 0 < num_rows <= HeadGate.MAX_ROWS:
            self._gate.observe(drafted=drafted)
