"""The reference backend: torch's scaled_dot_product_attention over gathered pages. Runs everywhere.

Every query token is an item of its own: its rows are the query heads that share a key head, its keys are the
first ``padded_length(position)`` of its sequence with the future masked. What is computed for a token thus
depends on its position alone, not on how its prompt was cut, who shares the batch, or what was cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from engine.attention.backend import AttentionSpec, Rope
from engine.attention.kv_pool import KVPool

if TYPE_CHECKING:
    from engine.executor.forward_batch import ForwardBatch

IndexArray = npt.NDArray[np.int64]

_GATHER_VALUES = 1 << 20
"""Most values of keys gathered at a time for tokens of different sequences: what a CPU's cache holds."""


def padded_length(length: int) -> int:
    """Keys computed for a token that sees ``length``: rounded up, so that tokens of like length share a call."""
    step = 64 if length <= 512 else 128 if length <= 2048 else 512
    return -(-length // step) * step


@dataclass(frozen=True, slots=True)
class _Call:
    """Tokens [n] with the slots [n or 1, L] of their keys (one row: all are of the same sequence)."""

    tokens: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


class SdpaBackend:
    """Keys and values are widened to float32, and so is the arithmetic, whatever the pool's dtype."""

    def __init__(self, spec: AttentionSpec, pool: KVPool) -> None:
        self.spec = spec
        self.pool = pool

    @staticmethod
    def refuses(spec: AttentionSpec) -> str | None:
        return None

    def plan(self, batch: ForwardBatch) -> SdpaPlan:
        calls = [self._call(batch, tokens, length) for tokens, length in self._groups(batch)]
        slots = torch.from_numpy(batch.slot_mapping.astype(np.int64)).to(self.spec.device)
        return SdpaPlan(self.spec, self.pool, slots, calls)

    def _groups(self, batch: ForwardBatch) -> Iterator[tuple[IndexArray, int]]:
        """(token indices, padded length): runs of one sequence, then single tokens of several together."""
        singles: dict[int, list[int]] = {}
        for first, last in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist()):
            start = first
            while start < last:
                position = int(batch.positions[start])
                length = padded_length(position + 1)
                stop = min(last, start + length - position)
                if stop - start == 1:
                    singles.setdefault(length, []).append(start)
                else:
                    yield np.arange(start, stop, dtype=np.int64), length
                start = stop
        width = self.spec.num_kv_heads * self.spec.head_dim
        for length in sorted(singles):
            step = max(1, _GATHER_VALUES // (length * width))
            tokens = singles[length]
            for start in range(0, len(tokens), step):
                yield np.array(tokens[start : start + step], dtype=np.int64), length

    def _call(self, batch: ForwardBatch, tokens: IndexArray, length: int) -> _Call:
        rows = np.searchsorted(batch.cu_seqlens, tokens, side="right") - 1
        if (rows == rows[0]).all():
            rows = rows[:1]
        size = batch.page_size
        pages = batch.page_table[rows, : -(-length // size)]
        slots = (pages[:, :, None] * size + np.arange(size)).reshape(len(rows), -1)[:, :length]
        padded = np.zeros((len(rows), length), dtype=np.int64)
        padded[:, : slots.shape[1]] = slots
        visible = np.arange(length) <= batch.positions[tokens][:, None]
        mask = np.where(visible, np.float32(0), np.float32(-np.inf))
        tensors = (torch.from_numpy(array).to(self.spec.device) for array in (tokens, padded, mask))
        return _Call(*tensors)


class SdpaPlan:
    rotates = False

    def __init__(self, spec: AttentionSpec, pool: KVPool, slots: torch.Tensor, calls: list[_Call]) -> None:
        self._spec = spec
        self._pool = pool
        self._slots = slots
        self._calls = calls

    def forward(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: Rope | None = None
    ) -> torch.Tensor:
        self._pool.write(layer, self._slots, k, v)
        out = torch.empty((q.shape[0], self._spec.num_heads, self._spec.head_dim), dtype=q.dtype, device=q.device)
        for call in self._calls:
            out[call.tokens] = self._attend(layer, q[call.tokens], call).to(q.dtype)
        return out.view(q.shape[0], -1)

    def _attend(self, layer: int, q: torch.Tensor, call: _Call) -> torch.Tensor:
        """q [n, heads, dim] -> the same shape, float32."""
        spec, count = self._spec, q.shape[0]
        group = spec.num_heads // spec.num_kv_heads
        keys = self._gather(self._pool.keys[layer], call.slots, count)
        values = self._gather(self._pool.values[layer], call.slots, count)
        queries = q.float().view(count, spec.num_kv_heads, group, spec.head_dim)
        mask = call.mask[:, None, None, :].expand(count, 1, group, -1)
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).reshape(q.shape)

    def _gather(self, pool: torch.Tensor, slots: torch.Tensor, count: int) -> torch.Tensor:
        """[n, kv_heads, L, dim] float32; one sequence's keys are shared by its n tokens, not copied."""
        rows, length = slots.shape
        picked = pool.index_select(0, slots.view(-1)).float()
        picked = picked.view(rows, length, self._spec.num_kv_heads, self._spec.head_dim).transpose(1, 2)
        return picked if rows == count else picked.expand(count, -1, -1, -1)
