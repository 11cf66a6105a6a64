"""Schemas as serialisers leave them: null where nothing was said, and in languages whose empty list and empty map are
one and the same (PHP, Lua) ``[]`` in place of ``{}``.

Both are what their author wrote as absent or empty, so they are read so. Lists that hold something where an object
must stand are left as they are, for server/schema_check.py to refuse.
"""

from __future__ import annotations

from typing import Any

import orjson

from server.schema_check import DATA_KEYWORDS, NAME_MAPS

_OBJECTS = NAME_MAPS | {"items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames", "not"}
"""Keywords whose values are objects."""


def tidied(schema: Any) -> Any:
    """The schema itself where there is nothing to tidy or it is nested too deeply for any use, else a copy."""
    if not isinstance(schema, dict):
        return schema
    try:
        text = orjson.dumps(schema)
        untidy = b"null" in text or b"[]" in text or b'"required":{}' in text
        return _tidied(schema) if untidy else schema
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
            found[key] = {name: {} if sub == [] else _tidied(sub) for name, sub in value.items()}
        else:
            found[key] = _tidied(value)
    return found
