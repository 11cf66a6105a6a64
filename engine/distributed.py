"""Tensor parallelism: who this rank is, and the collectives that layers need. One rank needs no process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=10)
"""Ranks load at different speeds and one step may take long; a rank that dies is noticed at once, not by this."""
_INLINE_BYTES = 4096
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Rank ``rank`` of ``size``, the ``local_rank``-th of ``local_size`` on this machine. ``group`` is None where
    size is 1: the collectives are then the identity. ``control`` is a gloo group for data on the host."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    control: dist.ProcessGroup | None = None
    local_rank: int = 0
    local_size: int = 1

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

    def smallest(self, value: int) -> int:
        """The least of all ranks' values."""
        if self.size == 1:
            return value
        box = torch.tensor([value], dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MIN, group=self.control)
        return int(box)


class ControlChannel:
    """Bytes from rank 0 to every rank, in host memory (see engine.lockstep.Channel)."""

    def __init__(self, tp: TensorParallel) -> None:
        self._tp = tp
        self._frame = torch.zeros(_INLINE_BYTES, dtype=torch.uint8)

    @property
    def rank(self) -> int:
        return self._tp.rank

    def broadcast(self, data: bytes) -> bytes:
        """One collective for short data, which most is; a second one for the rest of longer data."""
        frame, room = self._frame, _INLINE_BYTES - _LENGTH_BYTES
        if self.rank == 0:
            frame[:_LENGTH_BYTES] = _tensor(len(data).to_bytes(_LENGTH_BYTES, "little"))
            head = data[:room]
            frame[_LENGTH_BYTES : _LENGTH_BYTES + len(head)] = _tensor(head)
        dist.broadcast(frame, 0, group=self._tp.control)
        length = int.from_bytes(frame[:_LENGTH_BYTES].numpy().tobytes(), "little")
        head = frame[_LENGTH_BYTES : _LENGTH_BYTES + min(length, room)].numpy().tobytes()
        if length <= room:
            return head
        rest = _tensor(data[room:]) if self.rank == 0 else torch.empty(length - room, dtype=torch.uint8)
        dist.broadcast(rest, 0, group=self._tp.control)
        return head + rest.numpy().tobytes()


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def init_tensor_parallel(
    rank: int, size: int, init_method: str, *, backend: str = "gloo", local_size: int = 0
) -> TensorParallel:
    """Join the group: ``init_method`` as torch.distributed names it (``tcp://host:port``, ``file:///path``).
    Blocks until all ranks are there. With size 1 it does nothing. ``local_size``: ranks on this machine, 0 for all
    of them; then nothing listens beyond the loopback interface."""
    if size == 1:
        return TensorParallel()
    if local_size in (0, size) and Path("/sys/class/net/lo").exists():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    local_size = local_size or size
    dist.init_process_group(backend, init_method=init_method, rank=rank, world_size=size, timeout=TIMEOUT)
    world = dist.group.WORLD
    control = world if backend == "gloo" else dist.new_group(backend="gloo", timeout=TIMEOUT)
    return TensorParallel(rank, size, world, control, rank % local_size, local_size)
