"""Logits in, token ids out: one walk per row, the same with and without drafts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engine.executor.executor import RowOutput
from engine.grammar.interface import GrammarError
from engine.messages import TokenLogprob, TopLogprob
from engine.sampling.draw import draw
from engine.sampling.rng import uniform
from engine.sampling.state import SamplingState
from engine.sampling.topk import top_indices

if TYPE_CHECKING:
    from engine.grammar.interface import GrammarMatcher, TokenBitmask
    from engine.scheduler.batch import BatchRow, ScheduleBatch

FloatArray = npt.NDArray[np.float32]
logger = logging.getLogger(__name__)

MIN_LOGPROB = -9999.0
"""What OpenAI reports for a token that has no probability to speak of; keeps JSON finite."""
NOTHING = RowOutput()
NOT_FINITE = "The model produced numbers that are not finite."
NOT_ALLOWED = "The grammar does not allow any token that the model can write here."


class RowFault(Exception):
    """This row cannot be sampled. The message is safe to show to a client; ``status`` is 400 where its grammar is
    at fault."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ArgmaxMasks:
    """rows: int32 [L, ceil(V / 32)] allowed tokens; flags: uint8 [L], 1 where the row of ``rows`` counts."""

    rows: npt.NDArray[np.int32]
    flags: npt.NDArray[np.uint8]


class Sampler:
    """Samples every row of a step. A row's result depends on its logits, its request and its position alone."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._words = -(-vocab_size // 32)
        self._scratch = np.empty(vocab_size, np.float32)

    def prepare(self, batch: ScheduleBatch) -> None:
        """Make the grammar masks of a step's first positions, to be called while the model computes. Optional."""
        for row in batch.rows:
            grammar, state = row.req.grammar, row.req.sampling
            if row.samples and grammar is not None and state is not None and state.prepared is False:
                try:
                    state.prepared = self._mask(grammar)
                except Exception:
                    state.prepared = False  # sample() meets the same fault where it can be answered

    def masks(self, batch: ScheduleBatch) -> ArgmaxMasks | None:
        """Masks of the positions where an argmax under the grammar decides, for an executor that takes the argmax
        beside its logits; None where no row has one. Give the result to ``sample`` with that argmax."""
        rows: npt.NDArray[np.int32] | None = None
        flags = np.zeros(batch.num_logits, np.uint8)
        end = 0
        for row in batch.rows:
            end += row.num_logits
            req, state = row.req, row.req.sampling
            if req.grammar is None or state is None or not row.samples:
                continue
            if not state.plain or req.num_output < state.min_tokens:
                continue
            if rows is None:
                rows = np.zeros((batch.num_logits, self._words), np.int32)
            first = end - 1 - len(row.draft)
            flags[first : first + _fill_masks(req.grammar, row.draft, rows[first:end])] = 1
        return None if rows is None else ArgmaxMasks(rows, flags)

    def wants_argmax_only(self, batch: ScheduleBatch, masks: ArgmaxMasks | None) -> bool:
        """Whether ``sample`` will look at no logits of this step but those of the argmax it is given."""
        end = 0
        for row in batch.rows:
            end += row.num_logits
            req, state = row.req, row.req.sampling
            if row.num_logits == 0 or (masks is not None and _masked(masks, row, end) and not req.wants_prompt_logits):
                continue
            if req.wants_prompt_logits or state is None or not _argmax_decides(state, req.grammar, req.num_output):
                return False
        return True

    def sample(
        self,
        logits: FloatArray,
        batch: ScheduleBatch,
        best: npt.NDArray[np.integer] | None = None,
        masks: ArgmaxMasks | None = None,
    ) -> tuple[RowOutput, ...]:
        """One RowOutput per row.

        logits: float32 [L, V], the rows of ``ForwardBatch.logits_index``; not changed. best: [L] argmax of each
        row where the caller has it already (NaN must win, as in numpy), under ``masks`` where it took them (-1
        where nothing is allowed). A row that cannot be sampled carries ``error``; the others are not affected.
        """
        outputs: list[RowOutput] = []
        offset = 0
        for row in batch.rows:
            count = row.num_logits
            if count == 0:
                outputs.append(NOTHING)
                continue
            known = None if best is None else best[offset : offset + count]
            masked = masks is not None and _masked(masks, row, offset + count)
            outputs.append(self._guarded(row, logits[offset : offset + count], known, masked))
            offset += count
        return tuple(outputs)

    def _guarded(
        self, row: BatchRow, block: FloatArray, best: npt.NDArray[np.integer] | None, masked: bool
    ) -> RowOutput:
        try:
            return self._sample_row(row, block, best, masked)
        except RowFault as fault:
            return RowOutput(error=str(fault), error_status=fault.status)
        except GrammarError as error:
            return RowOutput(error=str(error), error_status=400)
        except Exception:
            logger.exception("sampling failed for request %s", row.req.rid)
            return RowOutput(error="The request failed while its next token was chosen.")

    def _sample_row(
        self, row: BatchRow, block: FloatArray, best: npt.NDArray[np.integer] | None, masked: bool
    ) -> RowOutput:
        prompt = self._prompt_logprobs(row, block) if row.req.wants_prompt_logits else ()
        if not row.samples:
            return RowOutput(prompt_logprobs=prompt)
        tail = len(block) - 1 - len(row.draft)
        tokens, logprobs = self._walk(row, block[tail:], None if best is None else best[tail:], masked)
        return RowOutput(token_ids=tokens, logprobs=logprobs, prompt_logprobs=prompt)

    def _walk(
        self, row: BatchRow, block: FloatArray, best: npt.NDArray[np.integer] | None, masked: bool
    ) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """Sample position after position while the draft guessed right: the same tokens as one at a time. masked:
        ``best`` is under the grammar's masks; then no pass over the logits is needed."""
        req, draft = row.req, row.draft
        state, grammar = req.sampling, req.grammar
        assert state is not None
        tokens: list[int] = []
        logprobs: list[TokenLogprob] = []
        position, written = len(req.tokens), req.num_output
        for index in range(len(draft) + 1):
            logits = block[index]
            try:
                if masked and best is not None:
                    state.prepared = False
                    token = _finite_argmax(logits, _allowed(int(best[index])))
                elif _argmax_decides(state, grammar, written + index):
                    token = _finite_argmax(logits, None if best is None else int(best[index]))
                else:
                    token = self._choose(logits, state, grammar, position + index, written + index)
                if state.logprobs:
                    logprobs.append(self.token_logprob(logits, token, state.top_logprobs))
                if grammar is not None and not grammar.accept(token) and token not in state.stop_ids:
                    raise RowFault(NOT_ALLOWED, 400)
                ended = grammar is not None and grammar.terminated  # the request ends here, as it does without drafts
            except Exception:
                if not tokens:
                    raise
                break  # the tokens before it stand; the next step meets it again, as its first
            tokens.append(token)
            state.observe(token)
            if ended or index == len(draft) or token != draft[index] or token in state.stop_ids:
                break
        return tuple(tokens), tuple(logprobs[: len(tokens)])

    def _choose(
        self, logits: FloatArray, state: SamplingState, grammar: GrammarMatcher | None, position: int, num_output: int
    ) -> int:
        if not np.isfinite(logits.max()):
            raise RowFault(NOT_FINITE)
        row = self._scratch
        np.copyto(row, logits)
        state.modify(row, num_output)
        if grammar is not None:
            prepared, state.prepared = state.prepared, False
            mask = self._mask(grammar) if isinstance(prepared, bool) else prepared
            if mask is not None:
                barred = np.unpackbits(mask.view(np.uint8), bitorder="little", count=len(row)) == 0
                row[barred] = -np.inf
                if num_output < state.min_tokens and row.max() == -np.inf:  # nothing is left to write but the end
                    np.copyto(row, logits)
                    state.modify(row, state.min_tokens)
                    row[barred] = -np.inf
        if state.greedy:
            return _finite_argmax(row, None, masked=grammar is not None)
        if not np.isfinite(row.max()):
            raise RowFault(NOT_ALLOWED, 400)  # the logits were finite: a mask has emptied the row
        u = uniform(state.seed, position)
        return draw(row, u, temperature=state.temperature, top_k=state.top_k, top_p=state.top_p, min_p=state.min_p)

    def _mask(self, grammar: GrammarMatcher) -> TokenBitmask | None:
        mask = np.zeros(self._words, np.int32)
        return mask if grammar.fill_mask(mask) else None

    def _prompt_logprobs(self, row: BatchRow, block: FloatArray) -> tuple[TokenLogprob, ...]:
        req, state = row.req, row.req.sampling
        assert state is not None
        last = min(row.known_end, req.prompt_len - 1)
        targets = req.tokens[row.start + 1 : last + 1]
        return tuple(self.token_logprob(block[i], token, state.top_logprobs) for i, token in enumerate(targets))

    def token_logprob(self, logits: FloatArray, token: int, top: int) -> TokenLogprob:
        """log softmax of the unmodified logits (temperature 1, before penalties, bias and masks), as OpenAI and vLLM
        report it; finite, never below MIN_LOGPROB."""
        maximum = logits.max()
        weights = np.subtract(logits, maximum, out=self._scratch)
        norm = float(maximum) + math.log(float(np.exp(weights, out=weights).sum(dtype=np.float64)))
        best = top_indices(logits, top) if top else ()
        alternatives = tuple(TopLogprob(int(i), _bounded(float(logits[i]) - norm)) for i in best)
        return TokenLogprob(token, _bounded(float(logits[token]) - norm), alternatives)


def _argmax_decides(state: SamplingState, grammar: GrammarMatcher | None, num_output: int) -> bool:
    """Whether the next token is the argmax of the logits as they are."""
    return state.plain and grammar is None and num_output >= state.min_tokens


def _fill_masks(grammar: GrammarMatcher, draft: Sequence[int], rows: npt.NDArray[np.int32]) -> int:
    """The masks of a row's positions, each behind the guesses before it; how many were made. None is missed: what is
    behind a guess that the grammar does not allow, or behind its end, is never sampled. 0 where one cannot be made:
    sample() meets the same fault where it can be answered, if it comes so far."""
    filled = 0
    try:
        if draft:
            grammar = grammar.copy()
        while filled < len(rows):
            if not grammar.fill_mask(rows[filled]):
                rows[filled] = -1
            filled += 1
            if filled == len(rows) or grammar.terminated or not grammar.accept(draft[filled - 1]):
                break
    except Exception:
        logger.debug("a mask could not be made", exc_info=True)
        return 0
    return filled


def _masked(masks: ArgmaxMasks, row: BatchRow, end: int) -> bool:
    """Whether the row whose logits end before ``end`` has masks."""
    return bool(masks.flags[end - 1 - len(row.draft)])


def _allowed(token: int) -> int:
    if token < 0:
        raise RowFault(NOT_ALLOWED, 400)
    return token


def _finite_argmax(row: FloatArray, best: int | None, *, masked: bool = False) -> int:
    """The first largest entry. A NaN anywhere wins the argmax, so one look at the winner finds it."""
    token = int(row.argmax()) if best is None else best
    if masked and row[token] == -np.inf:
        raise RowFault(NOT_ALLOWED, 400)
    if not np.isfinite(row[token]):
        raise RowFault(NOT_FINITE)
    return token


def _bounded(logprob: float) -> float:
    return min(0.0, max(logprob, MIN_LOGPROB)) if logprob == logprob else MIN_LOGPROB
