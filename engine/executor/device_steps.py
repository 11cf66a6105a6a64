"""Steps on a GPU: everything is launched before anything is waited for, and often the step after it too."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec
import numpy as np
import torch

from engine.executor.cuda_graphs import DecodeGraphs
from engine.executor.device_sampler import DeviceSampler, accept
from engine.executor.executor import RowOutput, StepOutput, with_embeddings
from engine.executor.forward_batch import ForwardBatch, build_forward_batch
from engine.executor.run_ahead import Ahead, RunAhead
from engine.platform.transfer import upload
from engine.sampling.sampler import Sampler

if TYPE_CHECKING:
    from engine.scheduler.batch import BatchRow, ScheduleBatch


class StepModel(Protocol):
    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        """Last hidden states [T, hidden]; KV pages are written."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[L, hidden] -> [L, vocab] float32."""
        ...


class DeviceSteps:
    """``max_logits``: rows of logits that memory was kept for; steps that want more are sampled in pieces."""

    def __init__(
        self,
        model: StepModel,
        samplers: tuple[Sampler, DeviceSampler],
        max_logits: int,
        *,
        graphs: DecodeGraphs | None = None,
        ahead: RunAhead | None = None,
    ) -> None:
        self._model = model
        self._host, self._sampler = samplers
        self._max_logits = max_logits
        self._graphs = graphs
        self.ahead = ahead

    @torch.inference_mode()
    def execute(self, batch: ScheduleBatch) -> StepOutput:
        ahead, places = (None, {}) if self.ahead is None else self.ahead.take(batch)
        if ahead is None or not places:
            return StepOutput(self._compute(batch, whole=True))
        if len(places) == len(batch.rows):
            return StepOutput(self._answer(batch, ahead, [places[index] for index in range(len(batch.rows))]))
        missing = [index for index in range(len(batch.rows)) if index not in places]
        rest = msgspec.structs.replace(batch, rows=tuple(batch.rows[index] for index in missing))
        out = dict(zip(missing, self._compute(rest, whole=False), strict=True))
        tokens = ahead.drawn.host.array().tolist()
        out |= {index: accept(batch.rows[index], int(tokens[place])) for index, place in places.items()}
        return StepOutput(tuple(out[index] for index in range(len(batch.rows))))

    def _answer(self, batch: ScheduleBatch, ahead: Ahead, order: list[int]) -> tuple[RowOutput, ...]:
        """All of ``batch`` is under way: launch what follows, then wait."""
        tokens = ahead.drawn.tokens
        if order != list(range(len(ahead.rows))):
            (index,) = upload([np.array(order, np.int32)], tokens.device)
            tokens = tokens[index.long()]
        assert self.ahead is not None
        self.ahead.launch(batch, tokens)
        known = ahead.drawn.host.array().tolist()
        drawn = [int(known[place]) for place in order]
        self.ahead.know(drawn)
        return tuple(accept(row, token) for row, token in zip(batch.rows, drawn, strict=True))

    def _compute(self, batch: ScheduleBatch, *, whole: bool) -> tuple[RowOutput, ...]:
        """``whole``: the step has no other rows, and the one after it may be launched too."""
        step = build_forward_batch(batch)
        if self._graphs is not None and self._graphs.fits(step):
            return self._sample(self._graphs.run(step), batch, whole)
        hidden = self._model.forward(step)
        (index,) = upload([step.logits_index], hidden.device)
        index = index.long()
        if len(index) > self._max_logits:
            rows = self._in_pieces(batch, hidden, index)
        else:
            rows = self._sample(self._model.compute_logits(hidden[index]), batch, whole)
        return with_embeddings(rows, batch, step.cu_seqlens, partial(mean_state, hidden))

    def _sample(self, logits: torch.Tensor, batch: ScheduleBatch, whole: bool) -> tuple[RowOutput, ...]:
        """Grammar masks are made while the GPU computes."""
        self._host.prepare(batch)
        launched = self._sampler.launch(logits, batch)
        follows = self.ahead if whole and not launched.others else None
        if follows is not None and launched.drawn is not None:
            follows.launch(batch, launched.drawn.tokens)
        rows = self._sampler.finish(launched)
        if follows is not None and launched.drawn is not None:
            follows.know(launched.drawn.host.array().tolist())
        return rows

    def _in_pieces(self, batch: ScheduleBatch, hidden: torch.Tensor, index: torch.Tensor) -> tuple[RowOutput, ...]:
        """Many rows that want the logits of many positions (prompt logprobs)."""
        self._host.prepare(batch)
        out: list[RowOutput] = []
        start = 0
        for part in _pieces(batch.rows, self._max_logits):
            count = sum(row.num_logits for row in part)
            logits = self._model.compute_logits(hidden[index[start : start + count]])
            out += self._sampler.sample(logits, msgspec.structs.replace(batch, rows=tuple(part)))
            start += count
        return tuple(out)


def _pieces(rows: tuple[BatchRow, ...], limit: int) -> Iterator[list[BatchRow]]:
    """Runs of rows with at most ``limit`` logits together, and one row at least."""
    part: list[BatchRow] = []
    for row in rows:
        if part and sum(other.num_logits for other in part) + row.num_logits > limit:
            yield part
            part = []
        part.append(row)
    yield part


def mean_state(hidden: torch.Tensor, first: int, last: int) -> list[float]:
    mean: list[float] = hidden[first:last].double().mean(dim=0).tolist()
    return mean
