"""Schemas as they are written by hand and by serialisers: null where nothing was said, ``[]`` in place of ``{}`` in
languages whose empty list and empty map are one and the same (PHP, Lua), and ``required: true`` in a property, as draft
3 had it.

All of it says what its author meant, so it is read so. Lists that hold something where an object must stand are left as
they are, for server/schema_check.py to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from server.schema_check import DATA_KEYWORDS, NAME_MAPS

_OBJECTS = NAME_MAPS | {"items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames", "not"}
"""Keywords whose values are objects."""
_UNTIDY = re.compile(rb'null|\[\]|"required":(?:\{\}|true|false)')


def tidied(schema: Any) -> Any:
    """The schema itself where there is nothing to tidy or it is nested too deeply for any use, else a copy."""
    if not isinstance(schema, dict):
        return schema
    try:
        return _tidied(schema) if _UNTIDY.search(orjson.dumps(schema)) else schema
    except (TypeError, RecursionError):
        return schema


def _tidied(node: Any) -> Any:
    if isinstance(node, list):
        return [_tidied(item) for item in node]
    if not isinstance(node, dict):
        return node
    found = {}
    for key, value in node.items():
        if key in DATA_KEYWORDS and (key != "enum" or value is not None):
            found[key] = value
        elif value is None or (key == "required" and value == {}):
            continue
        elif key in _OBJECTS and value == []:
            found[key] = {}
        elif key in NAME_MAPS and isinstance(value, dict):
            found[key] = {name: _named(sub) for name, sub in value.items()}
        else:
            found[key] = _tidied(value)
    wanted = _wanted(node.get("properties"))
    if wanted and isinstance(listed := found.get("required", []), list):
        found["required"] = [*listed, *(name for name in wanted if name not in listed)]
    return found


def _named(sub: Any) -> Any:
    """What stands behind a name in a map of schemas."""
    if isinstance(sub, dict) and isinstance(sub.get("required"), bool):
        sub = {key: value for key, value in sub.items() if key != "required"}
    return {} if sub == [] else _tidied(sub)


def _wanted(properties: Any) -> list[str]:
    """The properties that say of themselves that they are required."""
    if not isinstance(properties, Mapping):
        return []
    return [name for name, sub in properties.items() if isinstance(sub, dict) and sub.get("required") is True]
