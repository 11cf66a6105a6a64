"""All ranks of a tensor-parallel group take the same messages in the same turns, so their schedulers decide alike.

Rank 0 reads the inbox and broadcasts what came, once per turn of its loop. Nothing else may differ: seeds of
unseeded requests come from a key that rank 0 draws at the start, and no decision reads a clock. Each turn carries
a checksum of what rank 0 sent after the turn before; a rank that computed anything else ends at once, and with it
the group, instead of going on with key/value pages that do not belong together.
"""

from __future__ import annotations

import hashlib
import secrets
import zlib
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from engine.messages import SchedulerInput, SchedulerOutput

_KEY_BYTES = 32


class Channel(Protocol):
    """Bytes from rank 0 to all. engine.distributed.ControlChannel is one."""

    @property
    def rank(self) -> int: ...

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's ``data``, on every rank; blocks until all ranks are there. Raises where a rank is gone."""
        ...


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """What rank 0 tells the others: messages for the scheduler, and ``checksum`` of its outputs so far."""

    messages: tuple[SchedulerInput, ...] = ()
    checksum: int = 0


class RankDiverged(RuntimeError):
    """This rank computed something else than rank 0."""


class Lockstep:
    """This rank's end of the channel: ``exchange`` opens a turn, ``note`` closes it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Turn)
        self._checksum = 0

    @property
    def is_leader(self) -> bool:
        return self._channel.rank == 0

    def exchange(self, messages: Sequence[SchedulerInput] = ()) -> Sequence[SchedulerInput]:
        """Rank 0's messages of this turn. Raises RankDiverged, and whatever the channel raises."""
        if self.is_leader:
            self._channel.broadcast(self._encoder.encode(Turn(tuple(messages), self._checksum)))
            return messages
        turn = self._decoder.decode(self._channel.broadcast(b""))
        if turn.checksum != self._checksum:
            raise RankDiverged(f"rank {self._channel.rank} has computed other tokens than rank 0.")
        return turn.messages

    def note(self, outputs: Sequence[SchedulerOutput]) -> None:
        """Remember what this rank's scheduler wants to send."""
        if outputs:
            self._checksum = zlib.crc32(self._encoder.encode(outputs), self._checksum)

    def random_seeds(self) -> Callable[[], int]:
        """The same unpredictable 63-bit seeds on every rank, in the same order."""
        key = self._channel.broadcast(secrets.token_bytes(_KEY_BYTES) if self.is_leader else b"")
        return _KeyedSeeds(key)


class _KeyedSeeds:
    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def __call__(self) -> int:
        self._count += 1
        digest = hashlib.blake2b(self._count.to_bytes(8, "little"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "little") >> 1
