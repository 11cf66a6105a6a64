"""Rotary embedding and the write of keys and values by one Triton kernel, for backends that run on a GPU."""

from __future__ import annotations

import torch

from engine.attention.backend import Rope
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import PagedStep


class RotaryStore:
    """What a step's plan does before it attends. Padding tokens (slot -1) are not stored."""

    def __init__(self, pool: KVPool, step: PagedStep) -> None:
        from engine.kernels.triton.rotary_kv import KVTarget, rotary_kv_write

        self._pool = pool
        self._slots = step.slots
        self._write = rotary_kv_write
        self._target = KVTarget

    def __call__(
        self, layer: int, qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor], rope: Rope | None
    ) -> torch.Tensor:
        """Returns q [T, heads, dim], rotated. Without ``rope`` q and k come rotated, and no token may be padding."""
        pool = self._pool
        if rope is None:
            pool.write(layer, self._slots, qkv[1], qkv[2])
            return qkv[0]
        tables = (rope[0].squeeze(1), rope[1].squeeze(1))
        return self._write(qkv, tables, self._target(pool.keys[layer], pool.values[layer], self._slots))
