"""What the scheduler asks of the thing that computes: pages in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from engine.messages import TokenLogprob

if TYPE_CHECKING:
    from engine.scheduler.batch import ScheduleBatch


@dataclass(frozen=True, slots=True)
class RowOutput:
    """What one scheduled row produced.

    token_ids: empty for a prompt chunk that does not reach the prompt's end; 1 for a decode; 1 + number of
    accepted drafts for a row with drafts. error: the row failed alone; its request ends with this message and
    error_status, 400 where the request itself was at fault.
    prompt_logprobs: for a row with ``req.wants_prompt_logits``, of tokens ``start + 1 .. end`` as far as they are
    prompt. embedding: for a row with ``req.embeds``, the mean over the row's tokens of the last hidden state
    (after the final norm); the scheduler joins chunks and L2-normalises.
    guess: the token that may follow and how likely it is, where ``ScheduleBatch.wants_guesses`` and the executor has a
    draft head.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    embedding: tuple[float, ...] | None = None
    guess: tuple[int, float] | None = None
    error: str | None = None
    error_status: int = 500


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``rows[i]`` belongs to ``batch.rows[i]``."""

    rows: tuple[RowOutput, ...] = field(default_factory=tuple)


def with_embeddings(
    rows: Sequence[RowOutput],
    batch: ScheduleBatch,
    cu_seqlens: npt.NDArray[np.int32],
    mean: Callable[[int, int], Iterable[float]],
) -> tuple[RowOutput, ...]:
    """Rows that ask for an embedding get ``mean(first, last)`` of the hidden states of their tokens in the step."""
    out = list(rows)
    for index, row in enumerate(batch.rows):
        if row.req.embeds:
            first, last = cu_seqlens[index : index + 2].tolist()
            out[index] = RowOutput(embedding=tuple(mean(first, last)))
    return tuple(out)


def with_guesses(
    rows: Sequence[RowOutput],
    batch: ScheduleBatch,
    states: npt.NDArray[np.float32],
    guess: Callable[[npt.NDArray[np.float32], npt.NDArray[np.int32]], Sequence[tuple[int, float]]],
) -> tuple[RowOutput, ...]:
    """Rows that wrote a token get ``guess(states [R, H], tokens [R])`` of their last token and of the state that
    gave it. ``states`` [L, H] are those of all logits."""
    out, end = list(rows), 0
    wrote: list[int] = []
    places: list[int] = []
    for index, (row, output) in enumerate(zip(batch.rows, rows, strict=True)):
        end += row.num_logits
        if output.token_ids:
            wrote.append(index)
            places.append(end - 2 - len(row.draft) + len(output.token_ids))
    if wrote:
        tokens = np.array([rows[index].token_ids[-1] for index in wrote], np.int32)
        for index, found in zip(wrote, guess(states[places], tokens), strict=True):
            out[index] = replace(rows[index], guess=found)
    return tuple(out)


class Executor(Protocol):
    """Runs the model over one ScheduleBatch and samples. One per process; owns weights and KV memory."""

    @property
    def num_pages(self) -> int:
        """KV pages that exist. Page ids are 0..num_pages-1."""
        ...

    @property
    def page_size(self) -> int: ...

    @property
    def vocab_size(self) -> int: ...

    def execute(self, batch: ScheduleBatch) -> StepOutput:
        """Compute all rows. Raises only where the machine is at fault; a row's own fault is RowOutput.error."""
        ...

    def copy_page(self, source: int, target: int) -> None:
        """Copy one KV page in every layer (used when a partly filled shared page must be extended)."""
        ...
