"""The life of one request in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.messages import DecodeParams, FinishReason, TokenLogprob

if TYPE_CHECKING:
    from engine.grammar.interface import GrammarMatcher
    from engine.kv_cache.lease import Lease
    from engine.sampling.state import SamplingState
    from engine.speculative.drafter import Drafter

OVERTAKING = 4
"""So many times less must a request owe than an earlier one of no higher priority to share the steps of this one."""
MAX_PREEMPTIONS = 8
"""A request preempted this often is protected: it is admitted again only with all the pages it may ever need."""


class Req:
    """Prompt, output, computed, pending, and why it ended. Only the scheduler (and the sampler's own state) writes.

    tokens: prompt, then output. prompt_len: how many of them are prompt. num_computed: leading tokens whose KV
    is in the pages of ``lease``. max_len: ``len(tokens)`` at which the request ends with ``length``.
    arrival: the scheduler's logical clock at ``add``; ``order`` sorts by priority, then arrival.
    num_sent: output tokens delivered so far.
    sampling: None for an embedding request. cached_tokens: prefix found in the cache at first admission.
    expected_hit: prefix that was in the cache when it came, while it waits.
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "decode",
        "drafter",
        "embed_sum",
        "expected_hit",
        "finish_reason",
        "grammar",
        "lease",
        "max_len",
        "num_computed",
        "num_sent",
        "order",
        "preemptions",
        "prompt_len",
        "prompt_logprobs",
        "prompt_rows",
        "rid",
        "sampling",
        "started",
        "tenant",
        "tokens",
    )

    def __init__(self, rid: str, tokens: list[int], *, max_len: int, arrival: int = 0, priority: int = 0) -> None:
        self.rid = rid
        self.tokens = tokens
        self.prompt_len = len(tokens)
        self.max_len = max_len
        self.arrival = arrival
        self.order = (-priority, arrival)
        self.tenant = ""
        self.sampling: SamplingState | None = None
        self.grammar: GrammarMatcher | None = None
        self.drafter: Drafter | None = None
        self.decode: DecodeParams | None = None
        self.prompt_logprobs = False
        self.prompt_rows: list[TokenLogprob] = []
        self.embed_sum: list[float] = []
        self.num_computed = 0
        self.num_sent = 0
        self.lease: Lease | None = None
        self.cached_tokens = -1
        self.expected_hit = 0
        self.preemptions = 0
        self.started = False
        self.finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_pending(self) -> int:
        """Tokens the request owes the model: the rest of its prompt, 1 (decode), or 1 + forced tokens."""
        return len(self.tokens) - self.num_computed

    def overtakes(self, other: Req) -> bool:
        """``other`` takes so much longer that this one need not wait for the end of that."""
        pending = self.num_pending - self.expected_hit
        return pending * OVERTAKING < other.num_pending and self.order[0] <= other.order[0]

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def embeds(self) -> bool:
        return self.sampling is None

    @property
    def decoding(self) -> bool:
        """Its next token waits on at most the tokens that it generated since the last step."""
        return self.num_computed >= self.prompt_len

    @property
    def protected(self) -> bool:
        return self.preemptions >= MAX_PREEMPTIONS

    @property
    def wants_prompt_logits(self) -> bool:
        """Logits of every prompt position are asked for and not delivered yet."""
        return self.prompt_logprobs and len(self.tokens) == self.prompt_len

    def __repr__(self) -> str:
        return f"Req({self.rid!r}, {self.num_computed}/{self.num_tokens} computed, prompt {self.prompt_len})"
