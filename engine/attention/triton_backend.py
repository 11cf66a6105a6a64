"""Paged attention by this project's own Triton kernels: any page size, rotary embedding fused into the KV write."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from engine.attention.backend import AttentionSpec, Rope
from engine.attention.kv_pool import KVPool
from engine.attention.paged_step import PagedStep, paged_step
from engine.attention.store import RotaryStore

if TYPE_CHECKING:
    from engine.executor.forward_batch import ForwardBatch

_MAX_HEAD_DIM = 256


def kernel_refuses(spec: AttentionSpec) -> str | None:
    """Why the kernels cannot run for ``spec``, wherever that is."""
    if spec.head_dim > _MAX_HEAD_DIM:
        return f"head_dim {spec.head_dim} is beyond {_MAX_HEAD_DIM}"
    if spec.num_heads // spec.num_kv_heads > 128:
        return f"{spec.num_heads // spec.num_kv_heads} query heads per key head are beyond 128"
    if find_spec("triton") is None:
        return "triton is not installed (pip install triton; torch for CUDA brings it along)"
    return None


class TritonBackend:
    """``plan`` uploads the step's tables at once; decode rows and the others get a kernel each."""

    def __init__(self, spec: AttentionSpec, pool: KVPool) -> None:
        self.spec = spec
        self.pool = pool

    @staticmethod
    def refuses(spec: AttentionSpec) -> str | None:
        if spec.device.type != "cuda":
            return f"its kernels run on a GPU, not on {spec.device.type}"
        return kernel_refuses(spec)

    def plan(self, batch: ForwardBatch) -> TritonPlan:
        return self.plan_step(paged_step(batch, self.spec.device))

    def plan_step(self, step: PagedStep) -> TritonPlan:
        """From tables that are on the device already (a CUDA graph's own)."""
        return TritonPlan(self.spec, self.pool, step)


class TritonPlan:
    rotates = True

    def __init__(self, spec: AttentionSpec, pool: KVPool, step: PagedStep) -> None:
        from engine.kernels.triton.decode_attention import decode_attention
        from engine.kernels.triton.prefill_attention import prefill_attention

        self._spec = spec
        self._pool = pool
        self._step = step
        self._decode = decode_attention
        self._prefill = prefill_attention
        self._store = RotaryStore(pool, step)

    def forward(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rope: Rope | None = None
    ) -> torch.Tensor:
        return self._attend(layer, self._store(layer, (q, k, v), rope)).view(q.shape[0], -1)

    def _attend(self, layer: int, q: torch.Tensor) -> torch.Tensor:
        from engine.kernels.triton.attention_ref import PagedKV

        step, pool, scale = self._step, self._pool, self._spec.head_dim**-0.5
        cut, rows = step.num_decodes, len(step.seq_lens)
        keys, values, size = pool.keys[layer], pool.values[layer], pool.page_size
        parts = []
        if cut:
            kv = PagedKV(keys, values, step.page_table[:cut], step.seq_lens[:cut], size)
            parts.append(self._decode(q[:cut], kv, scale))
        if cut < rows:
            kv = PagedKV(keys, values, step.page_table[cut:], step.seq_lens[cut:], size)
            bounds = step.cu_seqlens[cut:] - cut  # each decode row owns one token
            parts.append(self._prefill(q[cut:], bounds, kv, scale, longest=step.longest))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
