"""What every attention backend offers: plan once per step, forward once per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from engine.attention.kv_pool import KVPool
    from engine.executor.forward_batch import ForwardBatch


Rope = tuple[torch.Tensor, torch.Tensor]
"""cos and sin of each token's position, [T, 1, head_dim / 2] in float32."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """This rank's heads and the KV pool's form; all that a backend needs to accept or refuse."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int
    dtype: torch.dtype
    kv_dtype: torch.dtype
    device: torch.device


class AttentionPlan(Protocol):
    """One step, prepared."""

    @property
    def rotates(self) -> bool:
        """It applies ``rope`` itself, in the kernel that stores keys; else q and k come rotated."""
        ...

    def forward(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: Rope | None = None
    ) -> torch.Tensor:
        """Store k and v [T, kv_heads, dim] in the pool, then attend causally with q [T, heads, dim] over each
        token's own sequence. Returns [T, heads * dim] in q's dtype."""
        ...


class AttentionBackend(Protocol):
    @staticmethod
    def refuses(spec: AttentionSpec) -> str | None:
        """Why this backend cannot serve ``spec``, or None."""
        ...

    def plan(self, batch: ForwardBatch) -> AttentionPlan: ...


class AttentionBackendFactory(Protocol):
    """A backend's class."""

    @staticmethod
    def refuses(spec: AttentionSpec) -> str | None: ...

    def __call__(self, spec: AttentionSpec, pool: KVPool) -> AttentionBackend: ...
