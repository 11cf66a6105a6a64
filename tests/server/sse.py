"""Server-sent events with their names, as the dialects with ``event:`` lines write them."""

from __future__ import annotations

from typing import Any

import orjson


def named_events(text: str) -> list[Any]:
    """Every event's data. The ``event:`` line must be there and say what ``type`` says; comments are skipped."""
    assert text.endswith("\n\n")
    found = []
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        value = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}"
        found.append(value)
    return found
