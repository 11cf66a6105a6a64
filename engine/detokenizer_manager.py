"""The text process: token ids to printable deltas, and stop strings noticed (main loop: engine.detokenizer_process)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from engine.messages import (
    AbortReq,
    BatchStrOut,
    BatchTokenIDOut,
    DecodeParams,
    FinishReason,
    StrRow,
    TokenIDRow,
)
from engine.text.detokenize import IncrementalDetokenizer, TokenBytes
from engine.text.stop_strings import StopMatcher
from engine.text.tokenizer import TextTokenizer

logger = logging.getLogger(__name__)


class DecodeState:
    """One request's text so far: bytes of half characters and a tail that may become a stop string.

    stop_tokens: control tokens that are left out of the text and whose spelling is a stop string.
    """

    __slots__ = ("cached_tokens", "detokenizer", "keep", "num_tokens", "prompt_tokens", "stop_tokens", "stops")

    def __init__(self, table: TokenBytes, params: DecodeParams) -> None:
        self.detokenizer = IncrementalDetokenizer(
            table, skip_special_tokens=params.skip_special_tokens, keep_special=params.keep_special
        )
        self.stops = StopMatcher(
            params.stop, start_after=params.stop_after, opener=params.stop_opener, min_tokens=params.min_tokens
        )
        self.keep = frozenset(params.keep_special)
        self.stop_tokens = self.detokenizer.skipped_among(params.stop)
        self.num_tokens = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0


class DetokenizerManager:
    """Turns BatchTokenIDOut into BatchStrOut; knows a request from its first row to its last.

    ``abort`` tells the scheduler to end a request that wrote a stop string. Rows of unknown requests are
    dropped: those that the scheduler computed after their stop string was met, or before this process began.
    """

    def __init__(self, tokenizer: TextTokenizer, abort: Callable[[AbortReq], None]) -> None:
        self._table = TokenBytes(tokenizer)
        self._abort = abort
        self._states: dict[str, DecodeState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def process(self, batch: BatchTokenIDOut) -> BatchStrOut:
        rows = [made for row in batch.rows if (made := self._guarded_row(row)) is not None]
        return BatchStrOut(rows=tuple(rows))  # of a list: one of a generator leaves a larger block behind each time

    def _guarded_row(self, row: TokenIDRow) -> StrRow | None:
        """A fault in one request's text ends that request and no other."""
        try:
            return self._row(row)
        except Exception:
            logger.exception("detokenizing failed")
            self._states.pop(row.rid, None)
            self._abort(AbortReq(rid=row.rid))
            reason = FinishReason(type="error", message="The text of this request could not be decoded.", status=500)
            return StrRow(
                rid=row.rid,
                finish_reason=reason,
                prompt_tokens=row.prompt_tokens,
                cached_tokens=row.cached_tokens,
                completion_tokens=row.completion_tokens,
            )

    def _row(self, row: TokenIDRow) -> StrRow | None:
        state = self._states.get(row.rid)
        if state is None:
            if row.decode is None:
                return _refused(row) if row.finish_reason is not None else None
            state = self._states[row.rid] = DecodeState(self._table, row.decode)
        state.prompt_tokens = row.prompt_tokens or state.prompt_tokens
        state.cached_tokens = max(row.cached_tokens, state.cached_tokens)
        text, used = self._decode(state, row)
        finish = row.finish_reason
        if state.stops.matched is not None:
            if finish is None:
                self._abort(AbortReq(rid=row.rid, stop_matched=state.stops.matched))
            finish = FinishReason(type="stop", matched=state.stops.matched)
        if finish is not None:
            del self._states[row.rid]
        return _str_row(row, state, text, used, finish)

    def _decode(self, state: DecodeState, row: TokenIDRow) -> tuple[str, int]:
        """Printable text of the row and how many of its tokens count: those up to the end of a stop string."""
        parts: list[str] = []
        silent = self._silent_end(state, row)
        for index, token_id in enumerate(row.token_ids):
            state.num_tokens += 1
            if index != silent:
                parts.append(state.stops.feed(state.detokenizer.push(token_id), state.num_tokens))
                if token_id in state.stop_tokens:
                    parts.append(state.stops.end_at(state.stop_tokens[token_id], state.num_tokens))
            if state.stops.matched is not None:
                return "".join(parts), index + 1
        if row.finish_reason is not None:
            parts.append(state.stops.feed(state.detokenizer.flush(), state.num_tokens))
            parts.append(state.stops.flush())
        return "".join(parts), len(row.token_ids)

    def _silent_end(self, state: DecodeState, row: TokenIDRow) -> int:
        """Index of the last token where it only ends the request and is no text; -1 where there is none."""
        reason = row.finish_reason
        if reason is None or reason.type != "stop" or not row.token_ids:
            return -1
        last = row.token_ids[-1]
        ends = last == reason.matched if isinstance(reason.matched, int) else last in self._table.eos_token_ids
        if not ends or any(self._table.special_tokens.get(text) == last for text in state.keep):
            return -1
        return len(row.token_ids) - 1


def _str_row(row: TokenIDRow, state: DecodeState, text: str, used: int, finish: FinishReason | None) -> StrRow:
    surplus = len(row.token_ids) - used
    return StrRow(
        rid=row.rid,
        text=text,
        token_ids=row.token_ids[:used],
        logprobs=row.logprobs[:used],
        prompt_logprobs=row.prompt_logprobs,
        finish_reason=finish,
        prompt_tokens=state.prompt_tokens,
        cached_tokens=state.cached_tokens,
        completion_tokens=row.completion_tokens - surplus,
    )


def _refused(row: TokenIDRow) -> StrRow:
    """The end of a request that never had a token."""
    return StrRow(rid=row.rid, finish_reason=row.finish_reason, prompt_tokens=row.prompt_tokens)


def merge(batches: Sequence[BatchTokenIDOut]) -> BatchTokenIDOut:
    """Several steps as one message, rows in order."""
    if len(batches) == 1:
        return batches[0]
    rows = [row for batch in batches for row in batch.rows]
    return BatchTokenIDOut(rows=tuple(rows))
