"""What a step's tokens do to their requests: accept, stop, force, finish."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from engine.executor.executor import RowOutput
from engine.grammar.interface import GrammarError
from engine.kv_cache.allocator import PageError
from engine.kv_cache.manager import KVCacheManager
from engine.messages import (
    BatchTokenIDOut,
    DecodeParams,
    EmbedOut,
    FinishReason,
    SchedulerOutput,
    SchedulerStats,
    TokenIDRow,
    TokenLogprob,
)
from engine.scheduler.batch import BatchRow
from engine.scheduler.req import Req
from engine.speculative.acceptance import num_accepted

logger = logging.getLogger(__name__)

MAX_FORCED_TOKENS = 64
"""Forced tokens taken per step; the rest is forced again after the next one."""
INTERNAL_ERROR = FinishReason(type="error", message="The request failed inside the engine.", status=500)
LENGTH = FinishReason(type="length")
STOP = FinishReason(type="stop")


class StepOutputs:
    """Rows and replies of one step, in the order in which they were decided."""

    def __init__(self) -> None:
        self.rows: list[TokenIDRow] = []
        self.others: list[SchedulerOutput] = []

    def put(self, req: Req, logprobs: Sequence[TokenLogprob] = ()) -> int:
        """Deliver what ``req`` has written since its last row; with its finish_reason that is its last one.
        The first row carries ``decode``. Returns the number of new tokens."""
        first, req.started = not req.started, True
        tokens = req.tokens[req.prompt_len + req.num_sent :]
        req.num_sent += len(tokens)
        self.rows.append(
            TokenIDRow(
                rid=req.rid,
                token_ids=tuple(tokens),
                logprobs=tuple(logprobs[: len(tokens)]),
                prompt_logprobs=tuple(req.prompt_rows),
                finish_reason=req.finish_reason,
                prompt_tokens=req.prompt_len,
                cached_tokens=max(0, req.cached_tokens),
                completion_tokens=req.num_output,
                decode=req.decode if first else None,
            )
        )
        if req.prompt_rows:
            req.prompt_rows = []
        return len(tokens)

    def reject(self, rid: str, reason: FinishReason, prompt_tokens: int, decode: DecodeParams) -> None:
        self.rows.append(TokenIDRow(rid=rid, finish_reason=reason, prompt_tokens=prompt_tokens, decode=decode))

    def drain(self) -> list[SchedulerOutput]:
        outputs, self.others = self.others, []
        if self.rows:
            outputs.append(BatchTokenIDOut(rows=tuple(self.rows)))
            self.rows = []
        return outputs


class Counters:
    """Totals since the start, for SchedulerStats."""

    __slots__ = ("accepted", "draft", "forced", "generated", "hit", "preemptions", "prefill", "query")

    def __init__(self) -> None:
        self.accepted = self.draft = self.forced = self.generated = 0
        self.hit = self.preemptions = self.prefill = self.query = 0

    def stats(self, kv: KVCacheManager, **now: Any) -> SchedulerStats:
        """``now``: the fields of SchedulerStats that only the scheduler knows."""
        return SchedulerStats(
            **now,
            free_pages=kv.num_free,
            cached_pages=kv.num_cached,
            total_pages=kv.num_pages,
            page_size=kv.page_size,
            leaked_pages=kv.leaked_pages,
            preemptions=self.preemptions,
            cache_query_tokens=self.query,
            cache_hit_tokens=self.hit,
            draft_tokens=self.draft,
            accepted_tokens=self.accepted,
            generated_tokens=self.generated,
            prefill_tokens=self.prefill,
            forced_tokens=self.forced,
        )


class ResultProcessor:
    """Applies one RowOutput to one Req. Sets ``finish_reason``; freeing what a finished request held is the
    scheduler's."""

    def __init__(self, kv: KVCacheManager, outputs: StepOutputs, counters: Counters, vocab_size: int) -> None:
        self._kv = kv
        self._vocab_size = vocab_size
        self._outputs = outputs
        self._counters = counters

    def process(self, row: BatchRow, out: RowOutput) -> None:
        """The fault boundary of a request: whatever goes wrong with its own data ends it and nothing else."""
        req = row.req
        try:
            if out.error is not None:
                req.finish_reason = FinishReason(type="error", message=out.error, status=out.error_status)
                self._outputs.put(req)
            elif req.embeds:
                self._embed(row, out)
            else:
                self._advance(row, out)
        except GrammarError as error:
            req.finish_reason = FinishReason(type="error", message=str(error), status=400)
            self._outputs.put(req)
        except Exception:
            logger.exception("request %s failed in process_result", req.rid)
            req.finish_reason = INTERNAL_ERROR
            self._outputs.put(req)

    def force(self, req: Req, limit: int) -> None:
        """Append up to ``limit`` tokens that the grammar leaves no choice about."""
        grammar, state = req.grammar, req.sampling
        if grammar is None or state is None or state.logprobs or limit <= 0:
            return  # a forced token has no logits, so no logprob: those requests sample it
        forced: list[int] = []
        for token in grammar.forced_tokens()[:limit]:
            if token in state.stop_ids or not grammar.accept(token):
                break
            forced.append(token)
            state.observe(token)
        req.tokens.extend(forced)
        self._counters.forced += len(forced)

    def _advance(self, row: BatchRow, out: RowOutput) -> None:
        req, counters = row.req, self._counters
        counters.prefill += max(0, min(row.known_end, req.prompt_len) - row.start)
        if out.prompt_logprobs:
            req.prompt_rows.extend(out.prompt_logprobs)
        if not row.samples:
            self._computed(req, row.known_end)
            return
        accepted = num_accepted(row.draft, out.token_ids)
        if row.draft:
            counters.draft += len(row.draft)
            counters.accepted += accepted
        self._append(req, out.token_ids)
        if req.drafter is not None and out.guess is not None:
            req.drafter.hint(*out.guess)
        self._computed(req, min(row.known_end + accepted, len(req.tokens)))
        if req.grammar is not None and (req.finish_reason is None or req.finish_reason is LENGTH):
            self._continue_grammar(req)
        counters.generated += self._outputs.put(req, out.logprobs)

    def _append(self, req: Req, tokens: Sequence[int]) -> None:
        """Append up to and including the token that ends the request. A stop token counts and is delivered."""
        state = req.sampling
        assert state is not None
        for token in tokens:
            if not 0 <= token < self._vocab_size:
                raise ValueError("the executor returned a token that does not exist")
            req.tokens.append(token)
            if token in state.stop_ids and req.num_output > state.min_tokens:
                req.finish_reason = STOP if token in state.eos else FinishReason(type="stop", matched=token)
                return
            if len(req.tokens) >= req.max_len:
                req.finish_reason = LENGTH
                return

    def _continue_grammar(self, req: Req) -> None:
        """Force what comes next and see whether it is the end: an answer that is complete is no cut one, also where its
        last token was the last that it might have."""
        assert req.grammar is not None
        if not req.grammar.terminated:
            self.force(req, min(MAX_FORCED_TOKENS, req.max_len - len(req.tokens)))
        if req.grammar.terminated:
            req.finish_reason = STOP
        elif len(req.tokens) >= req.max_len:
            req.finish_reason = LENGTH

    def _embed(self, row: BatchRow, out: RowOutput) -> None:
        req = row.req
        if out.embedding is None:
            raise ValueError("the executor returned no embedding")
        self._counters.prefill += row.num_tokens
        summed = [value * row.num_tokens for value in out.embedding]
        req.embed_sum = [a + b for a, b in zip(req.embed_sum, summed, strict=True)] if req.embed_sum else summed
        self._computed(req, row.known_end)
        if req.num_pending == 0:
            norm = math.sqrt(sum(value * value for value in req.embed_sum))
            if not math.isfinite(norm) or norm == 0.0:
                raise ValueError("the embedding is not finite")
            vector = tuple(value / norm for value in req.embed_sum)
            self._outputs.others.append(EmbedOut(rid=req.rid, embedding=vector, prompt_tokens=req.prompt_len))
            req.finish_reason = STOP

    def _computed(self, req: Req, position: int) -> None:
        assert req.lease is not None
        req.num_computed = position
        try:
            self._kv.commit(req.lease, req.tokens, position)
        except PageError as error:
            self._kv.recover(error)  # what the cache forgets, no request needs
