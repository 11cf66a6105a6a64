"""Limits of one key: requests and tokens per minute as token buckets, and requests at a time.

Tokens are charged when they are known (prompt and output at the end of a request), so a key may overdraw once and
then waits until the bucket is positive again. The table has one row per configured key, never one per client.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from server.errors import RateLimited


@dataclass(slots=True)
class _Bucket:
    level: float
    stamp: float
    running: int = 0


class RateLimiter:
    """All limits are per key; 0 turns one off. ``clock`` is monotonic seconds."""

    def __init__(
        self,
        *,
        requests_per_minute: int = 0,
        tokens_per_minute: int = 0,
        max_concurrent: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requests_per_minute = requests_per_minute
        self._tokens_per_minute = tokens_per_minute
        self._max_concurrent = max_concurrent
        self._clock = clock
        self._requests: dict[bytes, _Bucket] = {}
        self._tokens: dict[bytes, _Bucket] = {}

    @contextmanager
    def admit(self, key: bytes) -> Iterator[None]:
        """Count one request of ``key`` from here to the end of the block, or raise RateLimited."""
        running = self._refill(self._requests, key, self._requests_per_minute)
        tokens = self._refill(self._tokens, key, self._tokens_per_minute)
        if self._max_concurrent and running.running >= self._max_concurrent:
            raise RateLimited(f"Limit reached: {self._max_concurrent} requests at a time for this key.")
        if self._tokens_per_minute and tokens.level <= 0:
            raise self._refusal("tokens", self._tokens_per_minute, 1 - tokens.level)
        if self._requests_per_minute and running.level < 1:
            raise self._refusal("requests", self._requests_per_minute, 1 - running.level)
        running.level -= 1
        running.running += 1
        try:
            yield
        finally:
            running.running -= 1

    @contextmanager
    def hold(self, key: bytes | None) -> Iterator[None]:
        """What goes on in the background is one of the requests that ``key`` has at a time."""
        running = None if key is None else self._refill(self._requests, key, self._requests_per_minute)
        if running is not None:
            running.running += 1
        try:
            yield
        finally:
            if running is not None:
                running.running -= 1

    def charge(self, key: bytes | None, tokens: int) -> None:
        """Take ``tokens`` off the key's minute; nobody's tokens (no key) are not counted."""
        if key is not None and self._tokens_per_minute:
            self._refill(self._tokens, key, self._tokens_per_minute).level -= tokens

    def _refill(self, table: dict[bytes, _Bucket], key: bytes, per_minute: int) -> _Bucket:
        now = self._clock()
        bucket = table.get(key)
        if bucket is None:
            bucket = table[key] = _Bucket(level=float(per_minute), stamp=now)
        bucket.level = min(float(per_minute), bucket.level + (now - bucket.stamp) * per_minute / 60)
        bucket.stamp = now
        return bucket

    @staticmethod
    def _refusal(what: str, per_minute: int, missing: float) -> RateLimited:
        return RateLimited(
            f"Rate limit reached: {per_minute} {what} per minute for this key.",
            retry_after=missing * 60 / per_minute,
        )
