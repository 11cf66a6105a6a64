"""Responses that later requests may continue or read: in memory, bounded in bytes and time, one namespace per key.

Another key's id is answered exactly as an unknown one. A conversation shares the bytes of its turns; every entry
counts all of its turns all the same, so that the cap holds whatever is evicted first.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from server.errors import NotFound, quote


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """response, input: JSON. turns: JSON lists of items, from the conversation's start to this response's output.
    item_ids: of its own input and output. conversation: it is one, and no response. events: of a stream that was made
    in the background, each at the place of its sequence number."""

    id: str
    response: bytes
    input: bytes
    turns: tuple[bytes, ...]
    item_ids: tuple[str, ...] = ()
    conversation: bool = False
    events: tuple[bytes, ...] = ()

    @property
    def size(self) -> int:
        names = sum(_ID_BYTES + len(item_id) for item_id in self.item_ids)
        events = sum(_EVENT_BYTES + len(event) for event in self.events)
        return len(self.response) + len(self.input) + sum(map(len, self.turns)) + names + events

    @property
    def own_turns(self) -> tuple[bytes, ...]:
        """Its input and its output."""
        return self.turns[-2:]


_ID_BYTES = 256
"""What it costs to find an item by its id."""
_EVENT_BYTES = 64
"""What an event costs beyond its own bytes."""


class ResponseNotFound(NotFound):
    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id {quote(response_id)} not found.", param="response_id")


class ItemNotFound(NotFound):
    def __init__(self, item_id: str, param: str) -> None:
        super().__init__(
            f"Item with id {quote(item_id)} not found: items are kept with their response, unless 'store' is false.",
            param=param,
        )


@dataclass(slots=True)
class _Tenant:
    """ids: oldest first. items: item id -> the responses that hold it, newest last."""

    ids: dict[str, None] = field(default_factory=dict)
    items: dict[str, list[str]] = field(default_factory=dict)
    size: int = 0


class ResponseStore:
    """max_bytes of all keys together; one key may fill a quarter of it (all of it where there are no keys)."""

    def __init__(self, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.size = 0
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[tuple[str, str], tuple[float, StoredResponse]] = {}
        self._tenants: dict[str, _Tenant] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def share(self, tenant: str) -> int:
        """Bytes that one key may fill."""
        return self._max_bytes // 4 if tenant else self._max_bytes

    def put(self, tenant: str, entry: StoredResponse) -> bool:
        """Keep an entry, in place of one with its id, dropping what is too old and then the oldest; one that is too
        large alone is not kept. Returns whether it is."""
        share = self.share(tenant)
        self._expire()
        if entry.size > share:
            return False
        if (tenant, entry.id) in self._entries:
            self._drop((tenant, entry.id))
        while (own := self._tenants.setdefault(tenant, _Tenant())).size + entry.size > share:
            self._drop((tenant, next(iter(own.ids))))
        while self.size + entry.size > self._max_bytes:
            self._drop(next(iter(self._entries)))
        own = self._tenants.setdefault(tenant, own)
        self._entries[tenant, entry.id] = (self._clock() + self._seconds, entry)
        own.ids[entry.id] = None
        for item_id in dict.fromkeys(entry.item_ids):
            own.items.setdefault(item_id, []).append(entry.id)
        own.size += entry.size
        self.size += entry.size
        return True

    def find(self, tenant: str, entry_id: str) -> StoredResponse | None:
        """A response or a conversation."""
        self._expire()
        found = self._entries.get((tenant, entry_id))
        return None if found is None else found[1]

    def get(self, tenant: str, response_id: str) -> StoredResponse:
        """Raises ResponseNotFound."""
        found = self.find(tenant, response_id)
        if found is None or found.conversation:
            raise ResponseNotFound(response_id)
        return found

    def holder(self, tenant: str, item_id: str, param: str) -> StoredResponse:
        """The newest response that holds an item. Raises ItemNotFound, which names ``param``."""
        self._expire()
        own = self._tenants.get(tenant)
        if own is None or item_id not in own.items:
            raise ItemNotFound(item_id, param)
        return self._entries[tenant, own.items[item_id][-1]][1]

    def delete(self, tenant: str, response_id: str) -> None:
        """Raises ResponseNotFound. Responses that continue this one keep their history."""
        self.get(tenant, response_id)
        self.drop(tenant, response_id)

    def drop(self, tenant: str, entry_id: str) -> None:
        """Forget an entry that there is."""
        self._drop((tenant, entry_id))

    def _expire(self) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values()))[0] <= now:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: tuple[str, str]) -> None:
        _, entry = self._entries.pop(key)
        own = self._tenants[key[0]]
        del own.ids[key[1]]
        for item_id in dict.fromkeys(entry.item_ids):
            own.items[item_id].remove(entry.id)
            if not own.items[item_id]:
                del own.items[item_id]
        own.size -= entry.size
        self.size -= entry.size
        if not own.ids:
            del self._tenants[key[0]]
