"""The next decode step, launched before the scheduler asks for it: the GPU computes while the host schedules.

When a step's sampling has been launched, the step after it is known as long as every row goes on: the same rows, one
position further, with the tokens that lie on the device already. It is launched at once. Rows that the scheduler
then asks for are answered from it; what it does not ask for (the request ended, was aborted or preempted) is dropped:
it has written one slot behind what was computed, where nobody reads before the slot's next owner has written.

A row whose next token begins a page that is not leased yet writes into a page of the executor's own; its key and
value move to the row's slot when that is known. Nothing here reads a clock, so all ranks do the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import torch

from engine.attention.kv_pool import KVPool
from engine.executor.cuda_graphs import DecodeGraphs
from engine.executor.device_sampler import DeviceSampler, Drawn, Pick, on_device
from engine.executor.forward_batch import ForwardBatch
from engine.platform.transfer import upload

if TYPE_CHECKING:
    from engine.scheduler.batch import BatchRow, ScheduleBatch
    from engine.scheduler.req import Req

_MAX_PAUSE: Final = 64
_SCRATCH_SHARE: Final = 64


def scratch_pages(num_pages: int, max_rows: int) -> int:
    """Pages of the executor's own beside ``num_pages``: one for each row that may begin a page in the same step."""
    return min(max_rows, max(1, num_pages // _SCRATCH_SHARE))


@dataclass(frozen=True, slots=True)
class AheadRow:
    """``position`` of the token that is computed, and the slot of its key and value."""

    req: Req
    position: int
    slot: int


@dataclass(slots=True)
class Ahead:
    """A step under way that nobody has asked for. inputs: the rows' tokens, once the host knows them."""

    rows: list[AheadRow]
    sources: list[int]
    drawn: Drawn
    inputs: list[int] = field(default_factory=list)

    def match(self, batch: ScheduleBatch) -> dict[int, int]:
        """Row of ``batch`` -> row here, where this is exactly what is asked for."""
        places = {id(row.req): place for place, row in enumerate(self.rows)} if self.inputs else {}
        found: dict[int, int] = {}
        for index, row in enumerate(batch.rows):
            place = places.get(id(row.req))
            if place is not None and self._answers(place, row):
                found[index] = place
        return found

    def _answers(self, place: int, row: BatchRow) -> bool:
        one = row.num_tokens == 1 and row.num_logits == 1 and row.samples and not row.draft
        return one and row.start == self.rows[place].position and row.req.tokens[row.start] == self.inputs[place]


class RunAhead:
    """``scratch``: pages that nobody leases. After a step that was not the foreseen one it pauses, twice as long each
    time, so that drafts or a queue of prompts cost few steps computed in vain."""

    def __init__(self, graphs: DecodeGraphs, sampler: DeviceSampler, pool: KVPool, scratch: range) -> None:
        self._graphs = graphs
        self._sampler = sampler
        self._pool = pool
        self._scratch = scratch
        self._pending: Ahead | None = None
        self._pause = 0
        self._wait = 0

    def take(self, batch: ScheduleBatch) -> tuple[Ahead | None, dict[int, int]]:
        """What was launched before, and which rows of ``batch`` it answers; their keys and values are in place."""
        ahead, self._pending = self._pending, None
        if ahead is None:
            return None, {}
        places = ahead.match(batch)
        missed = len(places) < len(batch.rows)
        self._pause = min(_MAX_PAUSE, max(1, 2 * self._pause)) if missed else 0
        self._wait = self._pause
        moves = [(ahead.rows[place].slot, self._slot(batch.rows[index])) for index, place in places.items()]
        moves = [(source, target) for source, target in moves if source != target]
        if moves:
            sources, targets = upload(list(np.array(moves, np.int32).T.copy()), self._pool.keys.device)
            self._pool.copy_slots(sources, targets)
        return ahead, places

    def forget(self) -> None:
        """Pages are about to change behind the scheduler's steps."""
        self._pending = None

    def launch(self, batch: ScheduleBatch, tokens: torch.Tensor) -> None:
        """The step after ``batch``, whose rows have drawn ``tokens`` [rows], on the device. Often nothing."""
        if self._wait:
            self._wait -= 1
            return
        rows, sources = self._next_rows(batch)
        if not rows:
            return
        step = self._step(rows, [batch.rows[source] for source in sources])
        if not self._graphs.fits(step):
            return
        if len(rows) < len(batch.rows):
            (index,) = upload([np.array(sources, np.int32)], tokens.device)
            tokens = tokens[index.long()]
        logits = self._graphs.run(step, tokens.clamp_min(0))  # negative: a row that failed, and will not be asked for
        picks = [Pick(state, row.position + 1) for row in rows if (state := row.req.sampling) is not None]
        drawn = self._sampler.draw(logits, np.arange(len(rows), dtype=np.int32), picks)
        self._pending = Ahead(rows, sources, drawn)

    def know(self, tokens: Sequence[int]) -> None:
        """The host has the tokens of the batch that was given to ``launch``."""
        if self._pending is not None:
            self._pending.inputs = [tokens[source] for source in self._pending.sources]

    def _next_rows(self, batch: ScheduleBatch) -> tuple[list[AheadRow], list[int]]:
        """Rows that go on, and their places in ``batch``; none where any row cannot be foreseen."""
        rows: list[AheadRow] = []
        sources: list[int] = []
        spare = iter(self._scratch)
        size = self._pool.page_size
        for index, row in enumerate(batch.rows):
            req, position = row.req, row.end
            if not (on_device(row) and req.grammar is None) or req.lease is None:
                return [], []
            if position + 1 >= req.max_len:
                continue  # it ends with the token that is being drawn
            number = position // size
            page = req.lease.pages[number] if number < len(req.lease.pages) else next(spare, None)
            if page is None:
                return [], []
            rows.append(AheadRow(req, position, page * size + position % size))
            sources.append(index)
        return rows, sources

    def _step(self, rows: Sequence[AheadRow], before: Sequence[BatchRow]) -> ForwardBatch:
        size, count = self._pool.page_size, len(rows)
        positions = np.array([row.position for row in rows], np.int32)
        slots = np.array([row.slot for row in rows], np.int32)
        table = np.zeros((count, int(positions.max()) // size + 1), np.int32)
        for line, row, old in zip(table, rows, before, strict=True):
            number = row.position // size
            if old.req.lease is not None:
                line[:number] = old.req.lease.table[:number]
            line[number] = row.slot // size
        places = np.arange(count, dtype=np.int32)
        return ForwardBatch(
            input_ids=np.zeros(count, np.int32),
            positions=positions,
            cu_seqlens=np.arange(count + 1, dtype=np.int32),
            seq_lens=positions + 1,
            page_table=table,
            slot_mapping=slots,
            logits_index=places,
            page_size=size,
        )

    def _slot(self, row: BatchRow) -> int:
        size = self._pool.page_size
        assert row.req.lease is not None
        return row.req.lease.pages[row.start // size] * size + row.start % size
