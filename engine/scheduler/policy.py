"""Who is computed next, and how much of it: chunk size, admission, growth estimate."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec

from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.radix_cache import PageKey, RadixNode
from engine.scheduler.batch import BatchRow
from engine.scheduler.req import Req

MIN_CHUNK = 32
SMOOTHING = 0.2


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler needs of the engine's configuration.

    max_model_len: context length in tokens; what the KV pool holds caps it further. num_draft_tokens: longest
    draft per row, 0 switches speculation off; max_draft_tokens: drafts of all rows of a step together.
    reads_clock: chunks and drafts are sized by what steps took. Ranks that compute together would not agree on that.
    target_latency: seconds between tokens that chunked prefill should not exceed while rows decode; 0, or without a
    clock: chunks are always chunked_prefill_size. strict: a failed memory check raises, after every step (tests);
    otherwise it is checked when idle, logged, counted and repaired.
    """

    max_running_requests: int = 64
    chunked_prefill_size: int = 512
    max_model_len: int = 32768
    num_draft_tokens: int = 0
    max_draft_tokens: int = 32
    enable_prefix_cache: bool = True
    reads_clock: bool = False
    target_latency: float = 0.0
    strict: bool = False


class ChunkPolicy:
    """How many prompt tokens (and forced tokens and drafts) a step may carry beside one token per decoding row.

    With a target latency it learns what a decode-only step and an extra token cost, and cuts chunks so that a
    mixed step stays under the target. Results do not depend on chunk sizes, so reading a clock is safe here.
    """

    def __init__(self, max_chunk: int, target_latency: float = 0.0) -> None:
        self.max_chunk = max(1, max_chunk)
        self.target_latency = target_latency
        self._step_cost = 0.0
        self._token_cost = 0.0

    def budget(self, num_decoding: int) -> int:
        if not self.target_latency or not num_decoding or not self._token_cost:
            return self.max_chunk
        room = (self.target_latency - self._step_cost) / self._token_cost
        return max(min(MIN_CHUNK, self.max_chunk), min(self.max_chunk, int(room)))

    def observe(self, num_extra: int, num_decoding: int, seconds: float) -> None:
        """Learn from a finished step with ``num_decoding`` decode tokens and ``num_extra`` others."""
        if num_extra == 0:
            self._step_cost = _smooth(self._step_cost, seconds)
        elif num_extra >= MIN_CHUNK:
            self._token_cost = _smooth(self._token_cost, max(0.0, seconds - self._step_cost) / num_extra)


class NewTokenRatio:
    """How much of their remaining max_tokens running requests are expected to write (SGLang's new_token_ratio).

    Admission keeps that many tokens free. It sinks while all goes well and rises with every preemption.
    """

    START, FLOOR, RISE, SINK = 0.2, 0.05, 0.1, 0.001
    CLIP = 1024

    def __init__(self) -> None:
        self.value = self.START

    def step(self) -> None:
        self.value = max(self.FLOOR, self.value - self.SINK)

    def preempted(self) -> None:
        self.value = min(1.0, self.value + self.RISE)

    def reserve(self, running: Sequence[Req]) -> int:
        """Tokens that ``running`` will still need pages for."""
        wanted = sum(min(req.max_len - len(req.tokens), self.CLIP) for req in running if not req.protected)
        return int(wanted * self.value)


class AdmitResult(Enum):
    ADMITTED = "admitted"
    DEFERRED = "deferred"
    NO_MEMORY = "no_memory"


class PrefillAdder:
    """Gives waiting requests their memory, all or nothing, in one step.

    A request whose next prefix page is being computed in this very step waits for it (one step at most each
    time, and only for a gain of MIN_GAIN tokens), so simultaneous requests with one system prompt compute it once.
    """

    MIN_GAIN = 32

    def __init__(self, kv: KVCacheManager, reserve_tokens: int) -> None:
        self._kv = kv
        self._reserve = kv.pages_for(reserve_tokens)
        self._computing: dict[tuple[RadixNode | str, PageKey], Req] = {}

    def note(self, row: BatchRow) -> None:
        """Remember which page after its committed ones a scheduled row is about to fill."""
        req, size = row.req, self._kv.page_size
        lease = req.lease
        if lease is None or not self._kv.enable_prefix_cache or (lease.num_committed + 1) * size > row.known_end:
            return
        key = self._kv.cache.page_key(req.tokens, lease.num_committed)
        self._computing[(lease.node or req.tenant, key)] = req

    def admit(self, req: Req, *, alone: bool) -> AdmitResult:
        """Lease pages for all known tokens of ``req``. ``alone``: nothing runs, so nothing is reserved."""
        kv = self._kv
        limit = 0 if req.embeds or req.wants_prompt_logits else req.num_tokens - 1
        path = kv.match_prefix(req.tenant, req.tokens, limit)
        if not alone and self._worth_waiting(req, path, limit):
            return AdmitResult.DEFERRED
        need = req.max_len if req.protected else req.num_tokens
        lease = kv.lease(req.tenant, need, path, 0 if alone else self._reserve)
        if lease is None:
            return AdmitResult.NO_MEMORY
        req.lease = lease
        req.num_computed = len(path) * kv.page_size
        return AdmitResult.ADMITTED

    def _worth_waiting(self, req: Req, path: Sequence[RadixNode], limit: int) -> bool:
        if not self._computing:
            return False
        start = len(path) * self._kv.page_size
        stop = start + max(self.MIN_GAIN, self._kv.page_size)
        if stop > limit:
            return False
        key = self._kv.cache.page_key(req.tokens, len(path))
        other = self._computing.get((path[-1] if path else req.tenant, key))
        return other is not None and other.tokens[start:stop] == req.tokens[start:stop]


def _smooth(old: float, new: float) -> float:
    return new if old == 0.0 else old + SMOOTHING * (new - old)
