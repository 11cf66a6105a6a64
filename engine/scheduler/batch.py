"""One step's decision, as data."""

from __future__ import annotations

import msgspec

from engine.scheduler.req import Req


class BatchRow(msgspec.Struct, frozen=True):
    """Tokens ``start .. start + num_tokens - 1`` of one sequence are computed in this step.

    num_tokens: known tokens and drafts together. draft: guesses that follow the last known token; they are the
    last ``len(draft)`` of ``num_tokens`` and are not in ``req.tokens``.
    num_logits: that many of the row's last tokens need logits: 0 for a chunk that ends before the last known
    token (or an embedding), 1 + len(draft) where a token is to be sampled, all where prompt logprobs are asked.
    samples: the row reaches the last known token, so a token comes out.
    """

    req: Req
    start: int
    num_tokens: int
    draft: tuple[int, ...] = ()
    num_logits: int = 1
    samples: bool = True

    @property
    def end(self) -> int:
        """Sequence length after the step, drafts included."""
        return self.start + self.num_tokens

    @property
    def known_end(self) -> int:
        """Position after the last token of the row that is no draft."""
        return self.start + self.num_tokens - len(self.draft)


def make_row(req: Req, num_known: int, draft: tuple[int, ...] = ()) -> BatchRow:
    """The row that computes ``num_known`` known tokens of ``req`` and then ``draft``."""
    start = req.num_computed
    samples = start + num_known == len(req.tokens) and req.sampling is not None
    if req.wants_prompt_logits:
        num_logits = num_known
    else:
        num_logits = 1 + len(draft) if samples else 0
    return BatchRow(req, start, num_known + len(draft), draft, num_logits, samples)


class ScheduleBatch(msgspec.Struct, frozen=True):
    """Rows in scheduling order; the same order on every rank. Never empty when it reaches an executor.

    wants_guesses: a draft head is asked what follows what the rows write.
    """

    rows: tuple[BatchRow, ...]
    page_size: int
    wants_guesses: bool = False

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_logits(self) -> int:
        return sum(row.num_logits for row in self.rows)
