"""Decode steps as recorded graphs, one for each of a few batch sizes.

A decode step of a small model is a thousand launches of a few microseconds each; as a graph it is one. A graph
computes on fixed memory, so a step's rows are copied into it and filled up with padding rows to the graph's size:
sequence length 0, slot -1, token 0. Such a row reads no page and writes none, and its logits are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch

from engine.attention.backend import AttentionPlan
from engine.attention.paged_step import PagedStep
from engine.executor.forward_batch import ForwardBatch
from engine.models.batch import ModelBatch
from engine.platform.transfer import upload

_SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_USUAL_TOKENS: Final = 1024


class Recorder(Protocol):
    """engine.platform.cuda.GraphRecorder, or one that records nothing (tests)."""

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]: ...


class GraphModel(Protocol):
    """What is recorded: attention over tables that lie on the device, and the model from ids to logits."""

    @property
    def num_pages(self) -> int: ...

    @property
    def page_size(self) -> int: ...

    def plan_step(self, step: PagedStep) -> AttentionPlan: ...

    def decode_logits(self, batch: ModelBatch) -> torch.Tensor:
        """[rows, vocab] float32 for a batch of one token per row."""
        ...


def graph_sizes(max_rows: int) -> tuple[int, ...]:
    """Batch sizes that get a graph, ascending; the last one is ``max_rows``, at most 512."""
    most = min(max_rows, _SIZES[-1])
    return (*(size for size in _SIZES if size < most), most)


@dataclass(frozen=True, slots=True)
class _Graph:
    """``data`` is the graph's input, one int32 tensor: ids, positions, slots, lengths, then the page table."""

    size: int
    data: torch.Tensor
    replay: Callable[[], torch.Tensor]


class DecodeGraphs:
    """``sizes`` as from graph_sizes; ``max_pages``: pages of the longest sequence."""

    def __init__(
        self,
        model: GraphModel,
        recorder: Recorder,
        device: torch.device,
        *,
        sizes: tuple[int, ...],
        max_pages: int,
    ) -> None:
        self._device = device
        self._max_pages = max_pages
        largest_first = sorted(sizes, reverse=True)  # the smaller ones then fit into the scratch memory of the first
        self._graphs = {size: self._record(model, recorder, size) for size in largest_first}
        self._sizes = tuple(sorted(sizes))

    def fits(self, batch: ForwardBatch) -> bool:
        """One token per row, the logits of every row wanted, and not too many or too long."""
        rows = len(batch.seq_lens)
        return (
            rows == len(batch.input_ids) == len(batch.logits_index)
            and rows <= self._sizes[-1]
            and batch.page_table.shape[1] <= self._max_pages
        )

    def run(self, batch: ForwardBatch, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [R, vocab] of a batch that ``fits``, valid until the next run. ``ids`` [R]: the rows' tokens, where
        they are on the device already; ``batch.input_ids`` is not read then."""
        rows = len(batch.seq_lens)
        graph = self._graphs[next(size for size in self._sizes if size >= rows)]
        (data,) = upload([self._fill(batch, graph.size)], self._device)
        graph.data.copy_(data)
        if ids is not None:
            graph.data[:rows].copy_(ids)
        return graph.replay()[:rows]

    def _fill(self, batch: ForwardBatch, size: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        rows, width = batch.page_table.shape
        data = np.zeros(size * (4 + self._max_pages), np.int32)
        heads = data[: 4 * size].reshape(4, size)
        heads[2] = -1
        for line, values in zip(heads, (batch.input_ids, batch.positions, batch.slot_mapping, batch.seq_lens)):
            line[:rows] = values
        data[4 * size :].reshape(size, self._max_pages)[:rows, :width] = batch.page_table
        return data

    def _record(self, model: GraphModel, recorder: Recorder, size: int) -> _Graph:
        """Recorded with slot -1 everywhere, so that no page is written. While kernels are tuned the rows seem to be
        of a usual length and on pages far apart: a row that has nothing to read says nothing about speed."""
        empty = np.zeros(size * (4 + self._max_pages), np.int32)
        empty[2 * size : 3 * size] = -1
        (data,) = upload([empty], self._device)
        ids, positions, slots, lengths = data[: 4 * size].view(4, size)
        bounds = torch.arange(size + 1, dtype=torch.int32, device=self._device)
        step = PagedStep(slots, lengths, bounds, data[4 * size :].view(size, -1), num_decodes=size, longest=0)
        batch = ModelBatch(input_ids=ids, positions=positions, attention=model.plan_step(step))
        lengths.fill_(min(_USUAL_TOKENS, self._max_pages * model.page_size))
        step.page_table.copy_((torch.arange(step.page_table.numel()) % model.num_pages).view(size, -1))
        replay = recorder.record(lambda: model.decode_logits(batch))
        lengths.zero_()
        step.page_table.zero_()
        return _Graph(size, data, replay)
