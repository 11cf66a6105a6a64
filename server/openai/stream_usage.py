"""What the chunks of a stream say of tokens: nothing, null where the usage comes at the end, or the counts so far, over
all choices (``continuous_usage_stats``, vLLM's)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import orjson

from server.openai.types.common import StreamOptions

_NULL = b',"usage":null'


@dataclass(frozen=True, slots=True)
class StreamUsage:
    """include: a chunk of its own at the end has the usage. continuous: every other chunk has it, too."""

    include: bool = False
    continuous: bool = False

    @classmethod
    def asked(cls, options: StreamOptions | None) -> StreamUsage:
        if options is None:
            return cls()
        return cls(bool(options.include_usage), bool(options.continuous_usage_stats))

    def tail(self, counts: Callable[[], Mapping[str, object]]) -> bytes:
        """The last member of a chunk with choices, with the comma before it."""
        if self.continuous:
            return b',"usage":' + orjson.dumps(counts())
        return _NULL if self.include else b""
