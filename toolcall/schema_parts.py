"""Parts of a schema that stand alone, with the definitions that they refer to."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolcall.schema_references import follow
from toolcall.schema_values import Schema

MAX_GRAMMAR_BYTES = 1_000_000
"""As engine.grammar.source has it."""
_ROOT = "whole-schema"


class WholeSchema:
    """A schema whose parts are taken out, with the definitions that they refer to: their references lead where they
    led. Where the definitions, written again for each part, exceed what any grammar may hold, they are left out, so
    that compiling fails."""

    def __init__(self, root: Schema) -> None:
        self._definitions = definitions(root)
        self._rebase = _leads_elsewhere(root)
        if self._rebase:
            self._definitions = {key: _rebased(value) for key, value in self._definitions.items()}
            named = self._definitions.get("$defs")
            self._definitions["$defs"] = {**(named if isinstance(named, Mapping) else {}), _ROOT: _rebased(root)}
        self._size = len(json.dumps(self._definitions))
        self._room = MAX_GRAMMAR_BYTES

    def part(self, schema: Any) -> Schema:
        if not isinstance(schema, Mapping):
            return {}
        if not _refers(schema):
            return schema
        self._room -= self._size
        return {**(self._definitions if self._room > 0 else {}), **(_rebased(schema) if self._rebase else schema)}


def definitions(schema: Schema) -> dict[str, Any]:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def resolved(schema: Schema) -> Schema:
    """Follow a local $ref once or more; what stands beside it stays. Cycles end the walk."""
    found = definitions(schema)
    for _ in range(16):
        reference = schema.get("$ref")
        target = follow(reference, schema) if isinstance(reference, str) else None
        if not isinstance(target, Mapping) or target is schema:
            break
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **beside, **found}
    return schema


def _refers(node: Any) -> bool:
    if isinstance(node, list):
        return any(map(_refers, node))
    return isinstance(node, Mapping) and ("$ref" in node or any(map(_refers, node.values())))


def _leads_elsewhere(node: Any) -> bool:
    """Whether a local reference leads to another place than a definition."""
    if isinstance(node, list):
        return any(map(_leads_elsewhere, node))
    if not isinstance(node, Mapping):
        return False
    return _is_elsewhere(node.get("$ref")) or any(map(_leads_elsewhere, node.values()))


def _is_elsewhere(reference: Any) -> bool:
    return (
        isinstance(reference, str)
        and reference.startswith("#")
        and not reference.startswith(("#/$defs/", "#/definitions/"))
    )


def _rebased(node: Any) -> Any:
    """References into the whole schema lead into the copy of it among the definitions."""
    if isinstance(node, list):
        return [_rebased(item) for item in node]
    if not isinstance(node, Mapping):
        return node
    return {
        key: f"#/$defs/{_ROOT}{value[1:]}" if key == "$ref" and _is_elsewhere(value) else _rebased(value)
        for key, value in node.items()
    }
