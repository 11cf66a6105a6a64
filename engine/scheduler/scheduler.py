"""The Scheduler decides, step by step, which tokens the model computes next."""

from __future__ import annotations

import logging
import secrets
import time
from bisect import insort
from collections.abc import Callable, Sequence
from operator import attrgetter

from engine.executor.executor import Executor
from engine.grammar.interface import GrammarBackend, GrammarError
from engine.kv_cache.allocator import PageError
from engine.kv_cache.manager import KVCacheManager
from engine.messages import (
    AbortReq,
    ControlReply,
    DecodeParams,
    EmbedReqInput,
    FinishReason,
    FlushCacheReq,
    SchedulerInput,
    SchedulerOutput,
    SchedulerStats,
    StatsReq,
    TokenizedGenerateReqInput,
)
from engine.scheduler.admission import Admitter, Rejected
from engine.scheduler.batch import BatchRow, ScheduleBatch, make_row
from engine.scheduler.policy import AdmitResult, ChunkPolicy, NewTokenRatio, PrefillAdder, SchedulerConfig
from engine.scheduler.req import Req
from engine.scheduler.results import INTERNAL_ERROR, MAX_FORCED_TOKENS, Counters, ResultProcessor, StepOutputs
from engine.speculative.drafter import Draft, Drafters
from engine.speculative.step_costs import StepCosts

logger = logging.getLogger(__name__)

MAX_PROMPT_LOGPROB_CHUNK = 64
"""Prompt positions whose logits are wanted per step: a whole vocabulary of floats each."""
MAX_NEW_GRAMMARS = 2
"""Compiled per step while requests run, which wait meanwhile: one may take half a second."""
RETRY_STEPS = 8
ORDER, PENDING = attrgetter("order"), attrgetter("num_pending")


def random_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(63)


class Scheduler:
    """Continuous batching by one rule: a request owes ``num_pending`` tokens, a step pays some of them.

    A pure object: messages go in through ``add``, ``step`` runs the model once and returns what to send. Decoding
    rows come first and get one token each beside the step's budget; chunks of prompts, forced tokens and drafts
    share the budget. Memory that runs out costs the latest request its pages, never its tokens. ``random_seed``
    and ``clock`` are for tests; only ``config.reads_clock`` lets a decision read the clock.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        executor: Executor,
        eos_token_ids: Sequence[int] = (),
        grammar: GrammarBackend | None = None,
        *,
        random_seed: Callable[[], int] = random_seed,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.executor = executor
        self.kv = KVCacheManager(
            executor.num_pages,
            executor.page_size,
            enable_prefix_cache=config.enable_prefix_cache,
            strict=config.strict,
        )
        self.chunks = ChunkPolicy(config.chunked_prefill_size, config.target_latency if config.reads_clock else 0.0)
        self._costs = StepCosts()
        self._drafters = Drafters(config.num_draft_tokens)
        self.running: list[Req] = []
        self.waiting: list[Req] = []
        self.num_steps = 0
        self._admitter = Admitter(
            context=min(config.max_model_len, executor.num_pages * executor.page_size),
            vocab_size=executor.vocab_size,
            eos_token_ids=eos_token_ids,
            grammar=grammar,
            drafters=self._drafters,
            random_seed=random_seed,
        )
        self._clock = clock
        self._inbox: list[SchedulerInput] = []
        self._reqs: dict[str, Req] = {}
        self._arrivals = 0
        self._outputs = StepOutputs()
        self._counters = Counters()
        self._results = ResultProcessor(self.kv, self._outputs, self._counters, executor.vocab_size)
        self._ratio = NewTokenRatio()
        self._checked = True
        self._blocked = ("", 0, 0)

    # ------------------------------------------------------------ the loop

    def add(self, message: SchedulerInput) -> None:
        """Take a message; it counts from the next ``step``."""
        self._inbox.append(message)

    def has_work(self) -> bool:
        return bool(self._inbox or self.running or self.waiting)

    def step(self) -> list[SchedulerOutput]:
        """Accept, schedule, forward, process_result; returns what to send, in order. Raises only where the
        machine is at fault."""
        self._accept()
        batch = self._schedule_or_repair()
        if batch is not None:
            self._forward(batch)
            self._retire()
        self._check()
        return self._outputs.drain()

    def _forward(self, batch: ScheduleBatch) -> None:
        started = self._clock()
        output = self.executor.execute(batch)
        num_decoding = sum(1 for row in batch.rows if row.req.decoding)
        if self.config.reads_clock:
            seconds = self._clock() - started
            self.chunks.observe(batch.num_tokens - num_decoding, num_decoding, seconds)
            if num_decoding == len(batch.rows) and batch.num_logits == batch.num_tokens:
                self._costs.observe(batch.num_tokens, seconds)
        for row, out in zip(batch.rows, output.rows, strict=True):
            self._results.process(row, out)

    def stats(self, rid: str = "") -> SchedulerStats:
        return self._counters.stats(
            self.kv,
            rid=rid,
            step=self.num_steps,
            running=len(self.running),
            waiting=len(self.waiting),
            memory_full=bool(self.waiting) and self._blocked[0] == self.waiting[0].rid,
            grammar_rows=sum(1 for req in self.running if req.grammar is not None),
        )

    # ------------------------------------------------------------ accept

    def _accept(self) -> None:
        inbox, self._inbox = self._inbox, []
        self._admitter.new_grammars = MAX_NEW_GRAMMARS if self.running else len(inbox)
        for message in inbox:
            if self._admitter.puts_off(message, self._inbox):
                self._inbox.append(message)
                continue
            match message:
                case TokenizedGenerateReqInput() | EmbedReqInput():
                    self._accept_request(message)
                case AbortReq(rid=rid, stop_matched=matched):
                    self._abort(rid, matched)
                case FlushCacheReq(rid=rid):
                    self._drafters.forget()
                    self._outputs.others.append(
                        ControlReply(rid=rid, ok=True, message=f"{self.kv.flush()} pages freed")
                    )
                case StatsReq(rid=rid):
                    self._outputs.others.append(self.stats(rid))

    def _accept_request(self, message: TokenizedGenerateReqInput | EmbedReqInput) -> None:
        if message.rid in self._reqs:
            logger.error("request %s was sent twice; the second one is dropped", message.rid)
            return
        self._arrivals += 1
        decode = DecodeParams() if isinstance(message, EmbedReqInput) else message.decode
        try:
            if isinstance(message, EmbedReqInput):
                req = self._admitter.embed(message, self._arrivals)
            else:
                req = self._admitter.generate(message, self._arrivals)
                if not req.prompt_logprobs:
                    self._results.force(req, min(MAX_FORCED_TOKENS, req.max_len - req.num_tokens - 1))
        except (Rejected, GrammarError) as error:
            reason = FinishReason(type="error", message=str(error), status=400)
            self._outputs.reject(message.rid, reason, len(message.input_ids), decode)
        except Exception:
            logger.exception("request %s could not be admitted", message.rid)
            self._outputs.reject(message.rid, INTERNAL_ERROR, len(message.input_ids), decode)
        else:
            self._reqs[req.rid] = req
            if self.waiting or any(not other.decoding for other in self.running):
                req.expected_hit = self.kv.hit_length(req.tenant, req.tokens)
            insort(self.waiting, req, key=ORDER)

    def _abort(self, rid: str, matched: str | None) -> None:
        req = self._reqs.get(rid)
        if req is None:
            return
        self._end(req, FinishReason(type="abort" if matched is None else "stop", matched=matched))

    # ------------------------------------------------------------ schedule

    def _schedule_or_repair(self) -> ScheduleBatch | None:
        try:
            return self._schedule()
        except PageError as error:
            self.kv.recover(error)
            return None

    def _schedule(self) -> ScheduleBatch | None:
        rows: dict[str, BatchRow] = {}
        preempted = self._counters.preemptions
        num_decoding = sum(1 for req in self.running if req.decoding)
        budget = self.chunks.budget(num_decoding)
        budget = self._schedule_decodes(rows, budget)
        admits = self._counters.preemptions == preempted
        budget = self._schedule_chunks(rows, budget, admits)
        if admits:
            self._admit(rows, budget)
        if not rows:
            return None
        self.num_steps += 1
        self._ratio.step()
        guesses = self._drafters.wants_guesses(row.samples for row in rows.values())
        return ScheduleBatch(tuple(rows.values()), self.kv.page_size, guesses)

    def _schedule_decodes(self, rows: dict[str, BatchRow], budget: int) -> int:
        """One token for every decoding row, then forced tokens and drafts as the budget allows (half of it where
        prompts wait for the rest)."""
        drafts = self.config.max_draft_tokens
        num_tokens = sum(1 for req in self.running if req.decoding)
        expected = float(num_tokens)
        num_rows, from_head = num_tokens, False
        kept = budget - budget // 2 if self.waiting or any(not req.decoding for req in self.running) else 0
        budget -= kept
        for req in list(self.running):
            if not req.decoding or req.lease is None:
                continue
            known = min(req.num_pending, 1 + budget)
            draft = Draft()
            limit = min(drafts, budget + 1 - known, req.max_len - req.num_tokens - 1)
            if known == req.num_pending and limit > 0 and req.drafter is not None:
                draft = req.drafter.propose(req.grammar).cut(limit)
                draft = draft.cut(self._costs.draft_length(num_tokens + known - 1, expected, draft.chances))
            if draft.tokens and not self.kv.grow(req.lease, req.num_computed + known + len(draft.tokens)):
                draft = Draft()
            if not draft.tokens and not self._make_room(req, req.num_computed + known):
                continue
            rows[req.rid] = make_row(req, known, draft.tokens)
            num_extra = known - 1 + len(draft.tokens)
            num_tokens += num_extra
            expected += sum(draft.chances)
            drafts -= len(draft.tokens)
            budget -= num_extra
            from_head = from_head or (draft.from_head and bool(draft.tokens))
        self._drafters.observe(num_rows, drafted=from_head)
        return budget + kept

    def _schedule_chunks(self, rows: dict[str, BatchRow], budget: int, admits: bool) -> int:
        """The next chunk of every prompt under way. Its pages were leased at admission. Where the first one takes
        several steps, half of the budget is for much shorter ones: they do not wait for all of it."""
        prompts = [req for req in self.running if not req.decoding]
        if prompts and prompts[0].num_pending > budget:
            first, half = prompts[0], budget // 2
            left = half
            for req in sorted((req for req in prompts if req.overtakes(first)), key=PENDING):
                left -= self._add_chunk(req, rows, left) if left > 0 else 0
            left = self._admit(rows, left, first) if admits else left
            budget -= half - left
        for req in prompts:
            if budget > 0 and req.rid not in rows:
                budget -= self._add_chunk(req, rows, budget)
        return budget

    def _add_chunk(self, req: Req, rows: dict[str, BatchRow], budget: int) -> int:
        count = min(req.num_pending, budget)
        if req.wants_prompt_logits:
            count = min(count, MAX_PROMPT_LOGPROB_CHUNK)
        rows[req.rid] = make_row(req, count)
        return count

    def _make_room(self, req: Req, num_tokens: int) -> bool:
        """Grow the lease of ``req``, preempting the latest requests; False where ``req`` itself had to go.

        Rows are scheduled in order and a victim is never before ``req``, so no victim has a row yet."""
        while req.lease is not None:
            if self.kv.grow(req.lease, num_tokens):
                return True
            victim = next((other for other in reversed(self.running) if not other.protected), None)
            if victim is None:
                raise AssertionError("protected requests hold all the pages that they can need")
            self._preempt(victim)
        return False

    def _preempt(self, req: Req) -> None:
        """Take the pages; the tokens stay and are computed again later, to the same result."""
        self.running.remove(req)
        insort(self.waiting, req, key=ORDER)
        req.num_computed = 0
        req.prompt_rows = []
        req.embed_sum = []
        req.preemptions += 1
        self._counters.preemptions += 1
        self._ratio.preempted()
        self._release(req)

    def _admit(self, rows: dict[str, BatchRow], budget: int, first: Req | None = None) -> int:
        """Start waiting requests in order while tokens, rows and memory last, those alone that overtake ``first``
        where it is given; returns the tokens that are left."""
        adder: PrefillAdder | None = None
        index = 0
        limit = self.config.max_running_requests
        while index < min(limit, len(self.waiting)) and budget > 0 and len(self.running) < limit:
            req = self.waiting[index]
            if self._blocked[0] == req.rid and self._still_blocked():
                break
            if first is not None and not req.overtakes(first):
                index += 1
                continue
            if adder is None:
                adder = PrefillAdder(self.kv, self._ratio.reserve(self.running))
                for row in rows.values():
                    adder.note(row)
            alone = not self.running
            admission = adder.admit(req, alone=alone)
            if admission is AdmitResult.DEFERRED:
                index += 1
            elif admission is AdmitResult.ADMITTED:
                del self.waiting[index]
                budget -= self._start(req, rows, budget)
                adder.note(rows[req.rid])
            elif alone:
                self._cannot_start(req)
            else:
                self._blocked = (req.rid, self.kv.num_available, self.num_steps)
                break
        return budget

    def _still_blocked(self) -> bool:
        """No page came free since the head of the queue was refused: matching its prefix again would be waste."""
        _, available, step = self._blocked
        return bool(self.running) and self.kv.num_available <= available and self.num_steps < step + RETRY_STEPS

    def _start(self, req: Req, rows: dict[str, BatchRow], budget: int) -> int:
        req.expected_hit = 0
        if req.cached_tokens < 0:
            req.cached_tokens = req.num_computed
            self._counters.query += req.num_tokens
            self._counters.hit += req.num_computed
        insort(self.running, req, key=ORDER)
        return self._add_chunk(req, rows, budget)

    def _cannot_start(self, req: Req) -> None:
        """Nothing runs and yet the pages are not there: the books are wrong. Repair them; the request ends."""
        self.kv.recover(PageError(f"{req!r} cannot start although nothing runs: {self.kv.check()}"))
        self._end(req, INTERNAL_ERROR)

    # ------------------------------------------------------------ finish

    def _retire(self) -> None:
        """Free what finished requests held."""
        if any(req.finish_reason is not None for req in self.running):
            finished = [req for req in self.running if req.finish_reason is not None]
            self.running = [req for req in self.running if req.finish_reason is None]
            for req in finished:
                self._release(req)
                del self._reqs[req.rid]
                self._drafters.finished(req.tokens, req.prompt_len, req.tenant)

    def _end(self, req: Req, reason: FinishReason) -> None:
        """End a request between steps, waiting or running."""
        req.finish_reason = reason
        (self.running if req.lease is not None else self.waiting).remove(req)
        self._release(req)
        del self._reqs[req.rid]
        self._outputs.put(req)

    def _release(self, req: Req) -> None:
        """Its pages go back; what a request computed that failed through no fault of its own is not kept for others."""
        lease, req.lease = req.lease, None
        if lease is None:
            return
        reason = req.finish_reason
        suspicious = reason is not None and reason.type == "error" and reason.status >= 500
        try:
            self.kv.release(lease, forget=suspicious)
        except PageError as error:
            self.kv.recover(error)

    def _check(self) -> None:
        """Prove that no page is lost: when idle, and after every step where ``strict``."""
        idle = not self.running and not self.waiting
        if not self.config.strict and (not idle or self._checked):
            self._checked = self._checked and idle
            return
        self._checked = True
        problems = self.kv.check()
        if problems:
            self.kv.recover(PageError("; ".join(problems)))
