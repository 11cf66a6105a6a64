"""Values written as elements inside elements (MiniMax M3): ``<a>1</a><b><item>x</item></b>``."""

from __future__ import annotations

from toolcall.json_text import quote
from toolcall.schema import SchemaNode, to_json

_MAX_DEPTH = 32
ITEM = "item"


def nested_json(text: str, namespace: str, schema: SchemaNode, depth: int = 0) -> str:
    """The JSON of a value of elements, each tag of which stands after the namespace; ``item`` elements make an
    array, and none at all an empty one. Text that is no well-formed sequence of elements is converted as plain text."""
    members: list[tuple[str, str]] = []
    pos = 0
    while depth < _MAX_DEPTH:
        at = text.find(namespace + "<", pos)
        if at < 0:
            break
        start = at + len(namespace) + 1
        end = text.find(">", start)
        key = text[start:end] if end > 0 else ""
        close = f"{namespace}</{key}>"
        stop = _closing(text, end + 1, f"{namespace}<{key}>", close) if key and not key.startswith("/") else -1
        if stop < 0 or text[pos:at].strip():
            return to_json(text, schema.type)
        members.append((key, text[end + 1 : stop]))
        pos = stop + len(close)
    if not text.strip() and "string" not in schema.type.kinds and (empty := schema.type.kinds & {"array", "object"}):
        return "[]" if "array" in empty else "{}"
    if not members or text[pos:].strip():
        return to_json(text, schema.type)
    values = [(k, nested_json(v, namespace, schema.child(k), depth + 1)) for k, v in members]
    if all(k == ITEM for k, _ in values):
        return "[" + ", ".join(v for _, v in values) + "]"
    return "{" + ", ".join(f"{quote(k)}: {v}" for k, v in values) + "}"


def _closing(text: str, pos: int, opening: str, closing: str) -> int:
    """Where the element that is open at pos closes, -1 if it does not."""
    level = 1
    while True:
        close = text.find(closing, pos)
        if close < 0:
            return -1
        level += text.count(opening, pos, close) - 1
        if level == 0:
            return close
        pos = close + len(closing)
