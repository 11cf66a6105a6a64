"""Sampling where the logits are: only token ids travel to the host, for all requests that allow it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from engine.executor.executor import RowOutput
from engine.platform.transfer import Download, upload
from engine.sampling.rng import uniform
from engine.sampling.sampler import NOT_ALLOWED, NOT_FINITE, Sampler
from engine.sampling.state import SamplingState

if TYPE_CHECKING:
    from engine.scheduler.batch import BatchRow, ScheduleBatch

Mask = npt.NDArray[np.int32]


def on_device(row: BatchRow) -> bool:
    """One token, from logits that only temperature, filters and a mask made in time change. It depends on the
    request and its position alone, so the same request is sampled in the same way in any company."""
    state = row.req.sampling
    if state is None or not row.samples or row.draft or row.num_logits != 1:
        return False
    if row.req.grammar is not None and isinstance(state.prepared, bool):
        return False
    if state.logprobs or state.penalties is not None or len(state.bias_ids):
        return False
    return row.req.num_output >= state.min_tokens


@dataclass(frozen=True, slots=True)
class Pick:
    """One token to draw: for whom, at which position, and what its grammar allows (None: everything)."""

    state: SamplingState
    position: int
    mask: Mask | None = None


@dataclass(frozen=True, slots=True)
class Drawn:
    """Token ids [n] int64 on the device, and on their way to the host; negative where a row could not be drawn."""

    tokens: torch.Tensor
    host: Download


@dataclass(frozen=True, slots=True)
class Launched:
    """One step's sampling under way. here: rows of ``batch`` that ``drawn`` holds; others: rows whose logits [l, V]
    come to the host in ``rest``."""

    batch: ScheduleBatch
    here: list[int]
    drawn: Drawn | None
    others: list[int]
    rest: Download | None


class DeviceSampler:
    """Like ``Sampler.sample``, which samples the rows that cannot be sampled here."""

    def __init__(self, sampler: Sampler) -> None:
        from engine.kernels.triton.sample import SampleParams, sample

        self._sampler = sampler
        self._words = -(-sampler.vocab_size // 32)
        self._kernel = sample
        self._params = SampleParams

    def sample(self, logits: torch.Tensor, batch: ScheduleBatch) -> tuple[RowOutput, ...]:
        """logits [L, V] on the device, rows as in ForwardBatch.logits_index; one RowOutput per row of ``batch``."""
        return self.finish(self.launch(logits, batch))

    def launch(self, logits: torch.Tensor, batch: ScheduleBatch) -> Launched:
        """Start all that ``sample`` does on the device; takes the masks that were prepared."""
        here = [index for index, row in enumerate(batch.rows) if on_device(row)]
        taken = set(here)
        others = [index for index in range(len(batch.rows)) if index not in taken]
        ends = np.cumsum([row.num_logits for row in batch.rows])
        rest = None
        if others:
            ranges = [np.arange(ends[i] - batch.rows[i].num_logits, ends[i]) for i in others]
            (index,) = upload([np.concatenate(ranges).astype(np.int32)], logits.device)
            rest = Download(logits[index.long()].float())
        places = np.array([int(ends[index]) - 1 for index in here], np.int32)
        drawn = self.draw(logits, places, [_pick(batch.rows[index]) for index in here]) if here else None
        return Launched(batch, here, drawn, others, rest)

    def finish(self, launched: Launched) -> tuple[RowOutput, ...]:
        """Wait, and tell states and grammars what was drawn."""
        rows = launched.batch.rows
        out: dict[int, RowOutput] = {}
        if launched.rest is not None:
            part = msgspec.structs.replace(launched.batch, rows=tuple(rows[index] for index in launched.others))
            logits = launched.rest.array().astype(np.float32)
            out.update(zip(launched.others, self._sampler.sample(logits, part), strict=True))
        if launched.drawn is not None:
            for index, token in zip(launched.here, launched.drawn.host.array().tolist(), strict=True):
                out[index] = accept(rows[index], int(token))
        return tuple(out[index] for index in range(len(rows)))

    def draw(self, logits: torch.Tensor, places: npt.NDArray[np.int32], picks: Sequence[Pick]) -> Drawn:
        """One token for each of ``picks`` (not empty), from the rows ``places`` of ``logits``."""
        count = len(picks)
        floats = np.zeros((4, -(-count // 4) * 4), np.float32)  # lines of whole 16 bytes, as upload wants them
        floats[:, :count] = [
            [0.0 if pick.state.greedy else pick.state.temperature for pick in picks],
            [pick.state.top_p for pick in picks],
            [pick.state.min_p for pick in picks],
            [uniform(pick.state.seed, pick.position) for pick in picks],
        ]
        floats[3] = np.minimum(floats[3], np.float32(1.0 - 2.0**-24))  # rounding to float32 may reach 1
        top_k = np.array([min(pick.state.top_k, self._sampler.vocab_size) for pick in picks], np.int32)
        arrays = [places, top_k, floats.view(np.int32), *self._masks(picks)]
        where, k, numbers, *mask = upload(arrays, logits.device)
        temperature, top_p, min_p, u = numbers.view(torch.float32)[:, :count]
        all_in_order = count == logits.shape[0] and bool((places == np.arange(count)).all())
        chosen = logits if all_in_order else logits[where.long()]
        tokens = self._kernel(chosen, self._params(temperature, k, top_p, min_p, u, mask[0] if mask else None))
        return Drawn(tokens, Download(tokens))

    def _masks(self, picks: Sequence[Pick]) -> list[Mask]:
        """The masks, all bits set where there is none; nothing where no pick has one."""
        if all(pick.mask is None for pick in picks):
            return []
        masks = np.full((len(picks), self._words), -1, np.int32)
        for line, pick in zip(masks, picks, strict=True):
            if pick.mask is not None:
                line[:] = pick.mask
        return [masks]


def _pick(row: BatchRow) -> Pick:
    """The row's next token under its prepared mask, which is taken."""
    state = row.req.sampling
    assert state is not None
    prepared: Mask | bool | None = None
    if row.req.grammar is not None:
        prepared, state.prepared = state.prepared, False
    return Pick(state, len(row.req.tokens), None if isinstance(prepared, bool) else prepared)


def accept(row: BatchRow, token: int) -> RowOutput:
    """The row has drawn ``token``: what comes of it, its state and its grammar told."""
    state, grammar = row.req.sampling, row.req.grammar
    if token < 0:
        from engine.kernels.triton.sample import NOTHING

        if token == NOTHING:
            return RowOutput(error=NOT_ALLOWED, error_status=400)
        return RowOutput(error=NOT_FINITE)
    if state is not None:
        state.observe(token)
        if grammar is not None:
            try:
                if not grammar.accept(token) and token not in state.stop_ids:
                    return RowOutput(error=NOT_ALLOWED, error_status=400)
            except Exception as error:
                return RowOutput(error=" ".join(str(error).split()) or NOT_ALLOWED, error_status=400)
    return RowOutput(token_ids=(token,))
