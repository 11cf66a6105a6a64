"""Items of stored responses: those that a request only names (``item_reference``), and the list of a response's input.

SDKs that know a response to be stored send its items back by their ids alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from server.errors import invalid
from server.json_response import OFF_LOOP_BYTES, off_loop
from server.openai.responses.store import ResponseStore, StoredResponse


async def parsed(turns: Iterable[bytes]) -> list[dict[str, Any]]:
    """The items of stored turns; many of them are parsed in a worker thread."""
    turns = tuple(turns)

    def parse() -> list[dict[str, Any]]:
        return [item for turn in turns for item in orjson.loads(turn)]

    return await off_loop(sum(map(len, turns)) > OFF_LOOP_BYTES, parse)


async def resolved(items: Sequence[dict[str, Any]], store: ResponseStore, tenant: str) -> list[dict[str, Any]]:
    """The items, each reference replaced by what it names. Raises ItemNotFound."""
    holders: dict[str, StoredResponse] = {}
    for index, item in enumerate(items):
        if item["type"] == "item_reference":
            entry = store.holder(tenant, item["id"], f"input[{index}]")
            holders[entry.id] = entry
    if not holders:
        return list(items)
    turns = [turn for entry in holders.values() for turn in entry.own_turns]
    known = {item["id"]: item for item in await parsed(turns)}
    return [known[item["id"]] if item["type"] == "item_reference" else item for item in items]


def page(items: list[dict[str, Any]], query: Mapping[str, str], *, whole: bool = False) -> dict[str, Any]:
    """A list object of items that lie oldest first: newest first unless ``order=asc``, ``limit`` (20) of them ``after``
    an id, or the whole. Raises BadRequest."""
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", "'asc' or 'desc' is expected")
    left = items if order == "asc" else items[::-1]
    after = query.get("after")
    if after:
        found = [index for index, item in enumerate(left) if item["id"] == after]
        if not found:
            raise invalid("after", "no such item")
        left = left[found[0] + 1 :]
    shown = [listed(item) for item in (left if whole else left[: _limit(query.get("limit", "20"))])]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(shown) < len(left),
    }


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:4]) <= 100 or len(text) > 3:
        raise invalid("limit", "a number from 1 to 100 is expected")
    return int(text)


def listed(item: dict[str, Any]) -> dict[str, Any]:
    """An input item as ``input_items`` lists it: content is always parts, and every item that can has a status."""
    if item["type"] == "additional_tools":
        return item
    if item["type"] == "reasoning":
        return {**item, "summary": item.get("summary") or []}
    shown = {**item, "status": item.get("status") or "completed"}
    if item["type"] == "message":
        shown["content"] = _parts(item.get("content"), item["role"])
    return shown


def _parts(content: Any, role: str) -> list[dict[str, Any]]:
    if content is None:
        return []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_part(part, role) for part in parts]


def _part(part: dict[str, Any], role: str) -> dict[str, Any]:
    if part["type"] not in ("text", "input_text", "output_text"):
        return part
    if role != "assistant":
        return {**part, "type": "input_text"}
    return {"annotations": [], "logprobs": [], **part, "type": "output_text"}
