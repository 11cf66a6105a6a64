"""Schemas as they are written by hand and by serialisers: null where nothing was said, ``[]`` in place of ``{}`` in
languages whose empty list and empty map are one and the same (PHP, Lua), ``required: true`` in a property, as draft 3
had it, and references to parts by the names that these have (``$anchor``, TypeBox's ``$id``).

All of it says what its author meant, so it is read so. Lists that hold something where an object must stand are left as
they are, for server/schema_check.py to refuse.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import orjson

from server.schema_check import DATA_KEYWORDS, NAME_MAPS, REFERENCES, walk

_OBJECTS = NAME_MAPS | {"items", "additionalProperties", "unevaluatedProperties", "contains", "propertyNames", "not"}
"""Keywords whose values are objects."""
_UNTIDY = re.compile(rb'null|\[\]|"required":(?:\{\}|true|false)')
_NAMING = (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#"))
_BY_NAME = re.compile(rb'"\$(?:ref":"(?!#/|#")|dynamicRef"|recursiveRef")')


def tidied(schema: Any) -> Any:
    """The schema itself where there is nothing to tidy or it is nested too deeply for any use, else a copy."""
    if not isinstance(schema, dict):
        return schema
    try:
        text = orjson.dumps(schema)
        schema = _by_pointers(schema) if _BY_NAME.search(text) else schema
        return _tidied(schema) if _UNTIDY.search(text) else schema
    except (TypeError, RecursionError):
        return schema


def _by_pointers(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy in which references to names are pointers to the parts that have them. A name of several parts stays."""
    places: dict[str, list[str]] = {"#": ["#"]}
    for pointer, node, _ in walk(schema):
        for key, mark in _NAMING:
            if isinstance(name := node.get(key), str) and name:
                places.setdefault(mark + name.removesuffix("#"), []).append(f"#{pointer}")
    names = {name: found[0] for name, found in places.items() if len(found) == 1}
    copy = deepcopy(schema)
    for _, node, _ in walk(copy):
        for key in REFERENCES:
            reference = node.get(key)
            if isinstance(reference, str) and not (key == "$ref" and reference.startswith("#/")):
                place, mark, rest = reference.partition("#/")
                target = names.get(place if mark else reference.removesuffix("#") or "#")
                if target is not None:
                    del node[key]
                    node["$ref"] = f"{target}/{rest}" if mark else target
    return copy


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
