"""Sampling where the logits are: only token ids travel to the host, for all requests that allow it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from engine.executor.executor import RowOutput
from engine.platform.transfer import Download, upload
from engine.sampling.rng import uniform
from engine.sampling.sampler import NOT_ALLOWED, Sampler

if TYPE_CHECKING:
    from engine.scheduler.batch import BatchRow, ScheduleBatch


def on_device(row: BatchRow) -> bool:
    """One token, from logits that only temperature, filters and a mask made in time change. It depends on the
    request and its position alone, so the same request is sampled in the same way in any company."""
    state = row.req.sampling
    if state is None or not row.samples or row.draft or row.num_logits != 1:
        return False
    if state.logprobs or state.penalties is not None or len(state.bias_ids):
        return False
    if row.req.grammar is not None and isinstance(state.prepared, bool):
        return False
    return row.req.num_output >= state.min_tokens


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
        here = [index for index, row in enumerate(batch.rows) if on_device(row)]
        others = [index for index in range(len(batch.rows)) if index not in set(here)]
        ends = np.cumsum([row.num_logits for row in batch.rows])
        tokens = self._launch(logits, [int(ends[index]) - 1 for index in here], [batch.rows[index] for index in here])
        out: dict[int, RowOutput] = {}
        if others:
            picked = np.concatenate([np.arange(ends[i] - batch.rows[i].num_logits, ends[i]) for i in others])
            rest = Download(logits[torch.from_numpy(picked).to(logits.device)].float()).array().astype(np.float32)
            part = msgspec.structs.replace(batch, rows=tuple(batch.rows[index] for index in others))
            out.update(zip(others, self._sampler.sample(rest, part), strict=True))
        if tokens is not None:
            for index, token in zip(here, tokens.array().tolist(), strict=True):
                out[index] = _accept(batch.rows[index], int(token))
        return tuple(out[index] for index in range(len(batch.rows)))

    def _launch(self, logits: torch.Tensor, places: list[int], rows: Sequence[BatchRow]) -> Download | None:
        if not rows:
            return None
        states = [row.req.sampling for row in rows if row.req.sampling is not None]
        count = len(states)
        floats = np.zeros((4, -(-count // 4) * 4), np.float32)  # lines of whole 16 bytes, as upload wants them
        floats[:, :count] = [
            [0.0 if state.greedy else state.temperature for state in states],
            [state.top_p for state in states],
            [state.min_p for state in states],
            [uniform(state.seed, len(row.req.tokens)) for state, row in zip(states, rows, strict=True)],
        ]
        floats[3] = np.minimum(floats[3], np.float32(1.0 - 2.0**-24))  # rounding to float32 may reach 1
        top_k = np.array([min(state.top_k, self._sampler.vocab_size) for state in states], np.int32)
        arrays = [np.array(places, np.int32), top_k, floats.view(np.int32), *self._masks(rows)]
        where, k, numbers, *mask = upload(arrays, logits.device)
        temperature, top_p, min_p, u = numbers.view(torch.float32)[:, :count]
        chosen = logits if places == list(range(logits.shape[0])) else logits[where.long()]
        return Download(self._kernel(chosen, self._params(temperature, k, top_p, min_p, u, mask[0] if mask else None)))

    def _masks(self, rows: Sequence[BatchRow]) -> list[np.ndarray[tuple[int, int], np.dtype[np.int32]]]:
        """The rows' masks, all bits set where a row has none; nothing where no row has one. Takes them."""
        if all(row.req.grammar is None for row in rows):
            return []
        masks = np.full((len(rows), self._words), -1, np.int32)
        for line, row in zip(masks, rows, strict=True):
            state = row.req.sampling
            if state is not None and row.req.grammar is not None:
                prepared, state.prepared = state.prepared, False
                if prepared is not None and not isinstance(prepared, bool):
                    line[:] = prepared
        return [masks]


def _accept(row: BatchRow, token: int) -> RowOutput:
    state, grammar = row.req.sampling, row.req.grammar
    if token < 0:
        if grammar is not None:
            return RowOutput(error=NOT_ALLOWED, error_status=400)
        return RowOutput(error="The model produced numbers that are not finite.")
    if state is not None:
        state.observe(token)
        if grammar is not None:
            try:
                if not grammar.accept(token) and token not in state.stop_ids:
                    return RowOutput(error=NOT_ALLOWED, error_status=400)
            except Exception as error:
                return RowOutput(error=" ".join(str(error).split()) or NOT_ALLOWED, error_status=400)
    return RowOutput(token_ids=(token,))
