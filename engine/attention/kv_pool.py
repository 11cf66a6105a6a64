"""Keys and values of every layer, in slots that pages divide."""

from __future__ import annotations

import numpy as np
import torch

from engine.attention.backend import AttentionSpec


class KVPool:
    """keys and values, each [layers, slots, kv_heads, head_dim]; slot = page * page_size + offset.

    Zero at first, and finite ever after: backends may read slots they then mask.
    """

    def __init__(self, spec: AttentionSpec, num_layers: int, num_pages: int) -> None:
        shape = (num_layers, num_pages * spec.page_size, spec.num_kv_heads, spec.head_dim)
        self.num_pages = num_pages
        self.page_size = spec.page_size
        self.keys = _zeros(shape, spec.kv_dtype, spec.device)
        self.values = _zeros(shape, spec.kv_dtype, spec.device)

    @staticmethod
    def page_bytes(spec: AttentionSpec, num_layers: int) -> int:
        """Memory of one page in all layers."""
        size = torch.empty(0, dtype=spec.kv_dtype).element_size()
        return 2 * num_layers * spec.page_size * spec.num_kv_heads * spec.head_dim * size

    def write(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store new tokens' [T, kv_heads, head_dim] in their slots [T]."""
        self.keys[layer].index_copy_(0, slots.long(), keys.to(self.keys.dtype))
        self.values[layer].index_copy_(0, slots.long(), values.to(self.values.dtype))

    def copy_slots(self, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Keys and values of ``sources`` [n] to ``targets`` [n] in every layer. No target is a source."""
        for pool in (self.keys, self.values):
            pool.index_copy_(1, targets.long(), pool.index_select(1, sources.long()))

    def copy_page(self, source: int, target: int) -> None:
        size = self.page_size
        for pool in (self.keys, self.values):
            pool[:, target * size : (target + 1) * size] = pool[:, source * size : (source + 1) * size]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On a CPU from the system's zero pages, which take memory only when they are written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = {2: np.int16, 4: np.int32}[torch.empty(0, dtype=dtype).element_size()]
    return torch.from_numpy(np.zeros(shape, dtype=raw)).view(dtype)
