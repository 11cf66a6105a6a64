"""Tensor parallelism: who this rank is, and the collectives that layers need. One rank needs no process group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Rank ``rank`` of ``size``. ``group`` is None where size is 1: the collectives are then the identity."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def share(self, total: int, what: str) -> slice:
        """This rank's part of ``total`` rows or columns; ValueError where they cannot be divided evenly."""
        if total % self.size:
            raise ValueError(f"{what} ({total}) cannot be divided among {self.size} ranks")
        part = total // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def kv_heads(self, total: int) -> slice:
        """This rank's key/value heads: an even share or, with fewer heads than ranks, one head that
        ``size / total`` neighbouring ranks hold alike."""
        if total >= self.size:
            return self.share(total, "key/value heads")
        if self.size % total:
            raise ValueError(f"{self.size} ranks cannot share {total} key/value heads evenly")
        head = self.rank // (self.size // total)
        return slice(head, head + 1)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """[.., n] of every rank -> [.., n * size], in order of rank."""
        if self.size == 1:
            return x
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x, group=self.group)
        return torch.cat(parts, dim=-1)


def init_tensor_parallel(rank: int, size: int, init_method: str, *, backend: str = "gloo") -> TensorParallel:
    """Join the group: ``init_method`` as torch.distributed names it (``tcp://host:port``, ``file:///path``).
    Blocks until all ranks are there. With size 1 it does nothing."""
    if size == 1:
        return TensorParallel()
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size)
    return TensorParallel(rank, size, dist.group.WORLD)


def close_tensor_parallel(group: TensorParallel) -> None:
    if group.size > 1:
        dist.destroy_process_group()
