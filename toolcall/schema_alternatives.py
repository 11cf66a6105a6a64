"""Conditions of a schema (``if``, ``not``, ``dependentRequired``, a ``oneOf`` whose branches may overlap) as a choice
between schemas without conditions.

Every value that one of them allows fits the schema. What a negation cannot say in the compiler's words (an array that
does not fit its ``items``, a property of any other name) is left out where something is left without it; where nothing
would be, or where a pattern or a format would have to be denied, the condition is Unsayable.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from toolcall.schema import IMPLIED
from toolcall.schema_merging import combined
from toolcall.schema_values import (
    Schema,
    as_list,
    as_mapping,
    canonical,
    fits,
    kind_of,
    kinds_of,
    literals,
    matches,
    typed,
)

Whole = Callable[[Any], "dict[str, Any] | None"]
"""A schema with what it refers to in place of the reference; None where that is too much."""

CONDITIONS = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies")
)
_OF_OBJECTS = frozenset(
    ("properties", "required", "additionalProperties", "patternProperties", "unevaluatedProperties")
)
_NEEDED = CONDITIONS - {"allOf", "anyOf", "oneOf"}
_MAX_ALTERNATIVES = 64
_MAX_SIZE = 100_000
_MAX_DEPTH = 16
_KINDS = ("string", "integer", "number", "boolean", "object", "array", "null")
_OPPOSITE = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_COUNTS = {
    f"{low}{what}": (f"{high}{what}", step)
    for what in ("Length", "Items", "Properties")
    for low, high, step in (("min", "max", -1), ("max", "min", 1))
}


class Unsayable(Exception):
    """No choice between plain schemas says it."""


def alternatives(schema: Schema, whole: Whole) -> list[Schema] | None:
    """Schemas without conditions, one of which a value has to fit; [] where none can. None where the schema has no
    condition, or it cannot be said."""
    if not _conditional(schema, whole):
        return None
    known = {key: value for key, value in schema.items() if key not in CONDITIONS}
    typed(known)
    schema = {**schema, **known}
    if "$ref" in schema:
        target = whole({key: value for key, value in schema.items() if key != "unevaluatedProperties"})
        schema = schema if target is None else {**target, **_only(schema, "unevaluatedProperties")}
    try:
        found = _Expander(whole).expanded(schema, 0)
    except Unsayable:
        return None
    if not found and _counts(schema) and "additionalProperties" not in schema:
        return None  # properties that are not listed could make up the number
    return found


def _conditional(schema: Schema, whole: Whole, depth: int = 0) -> bool:
    if _NEEDED & schema.keys() and not _only_excludes_values(schema):
        return True
    if "oneOf" in schema or (isinstance(schema.get("anyOf"), list) and _OF_OBJECTS & schema.keys()):
        return True
    if schema.keys() >= {"unevaluatedProperties", "$ref"} or _counts(schema):
        return True
    parts = schema.get("allOf")
    inner = (whole(part) for part in parts) if isinstance(parts, list) and depth < _MAX_DEPTH else ()
    return any(part is not None and _conditional(part, whole, depth + 1) for part in inner)


def _counts(schema: Schema) -> bool:
    """Whether the number of properties is bounded where it is a question of which of those listed are there."""
    if schema.get("minProperties", 0) < 2 and "maxProperties" not in schema:
        return False
    listed, required = as_mapping(schema.get("properties")), as_list(schema.get("required"))
    if schema.get("additionalProperties", False) is not False or "patternProperties" in schema:
        return False
    optional = len(listed.keys() - set(required))
    closed = schema.get("additionalProperties") is False or schema.get("minProperties", 0) <= len(listed)
    return closed and optional > 0 and len(listed) == optional + len(required)


def _only_excludes_values(schema: Schema) -> bool:
    """The ``not`` that is left to the end, since others are easily put together with it."""
    return _NEEDED & schema.keys() == {"not"} and _excluded(schema) is not None


def _excluded(schema: Schema) -> list[Any] | None:
    excluded = schema.get("not")
    if not isinstance(excluded, Mapping) or len(excluded) != 1 or not excluded.keys() <= {"const", "enum"}:
        return None
    return literals(excluded)


class _Expander:
    def __init__(self, whole: Whole) -> None:
        self._whole = whole
        self._room = _MAX_SIZE

    def expanded(self, schema: Schema, depth: int) -> list[Schema]:
        """The alternatives of a schema; itself where it has no conditions."""
        if depth > _MAX_DEPTH:
            raise Unsayable
        base = {key: value for key, value in schema.items() if key not in CONDITIONS}
        if (values := _excluded(schema)) is not None:
            base["not"] = {"enum": values}
            base = settled(base)
        closed = base.get("unevaluatedProperties") is False and base.pop("unevaluatedProperties") is False
        counts = [base.pop("minProperties", 0), base.pop("maxProperties", math.inf)] if _counts(schema) else []
        closed = closed or bool(counts)
        found: list[Schema] = [base]
        for choice in itertools.chain(_counted(base, *counts), self._choices(schema, base, depth + 1)):
            found = self._product(found, choice)
        found = [_closed(part) if closed else part for part in found if possible(part)]
        return found if depth else list(map(_opened, found))

    def _choices(self, schema: Schema, base: Schema, depth: int) -> Iterator[list[Schema]]:
        """What of the alternatives of each condition has to hold."""
        for part in as_list(schema.get("allOf")):
            yield self._fitting(part, depth)
        yield from self._of_properties(schema, depth)
        if "not" in schema and _excluded(schema) is None:
            yield self._refusing(schema["not"], base, depth)
        if "if" in schema and ("then" in schema or "else" in schema):
            met = self._product(self._fitting(schema["if"], depth), self._fitting(schema.get("then", True), depth))
            missed = self._product(
                self._refusing(schema["if"], base, depth), self._fitting(schema.get("else", True), depth)
            )
            yield met + missed
        if "anyOf" in schema:
            yield [part for branch in as_list(schema["anyOf"]) for part in self._fitting(branch, depth)]
        if "oneOf" in schema:
            yield self._exactly_one(as_list(schema["oneOf"]), base, depth)

    def _of_properties(self, schema: Schema, depth: int) -> Iterator[list[Schema]]:
        """What follows from a property that is there."""
        for key in ("dependentRequired", "dependentSchemas", "dependencies"):
            asked = schema.get(key)
            for name, more in asked.items() if isinstance(asked, Mapping) else ():
                there: list[Schema] = [{"required": [name, *(other for other in as_list(more) if other != name)]}]
                if not isinstance(more, list):
                    there = self._product(there, self._fitting(more, depth))
                yield [{"properties": {name: False}}, *there]

    def _exactly_one(self, branches: Sequence[Any], base: Schema, depth: int) -> list[Schema]:
        found = []
        for index, branch in enumerate(branches):
            parts = [part for part in self._fitting(branch, depth) if possible(joined(base, part))]
            for other in (*branches[:index], *branches[index + 1 :]):
                overlapping = self._product([base], self._product(parts, self._fitting(other, depth)))
                if any(map(possible, overlapping)):
                    parts = [
                        both
                        for part in parts
                        for both in self._product([part], self._refusing(other, joined(base, part), depth))
                    ]
            found += parts
        return found

    def _fitting(self, schema: Any, depth: int) -> list[Schema]:
        if isinstance(schema, bool):
            return [{}] if schema else []
        whole = self._whole(schema)
        if whole is None:
            raise Unsayable
        return self.expanded(whole, depth)

    def _product(self, ones: Sequence[Schema], others: Sequence[Schema]) -> list[Schema]:
        found: dict[str, Schema] = {}
        for one in ones:
            for other in others:
                both = joined(one, other)
                if possible(both):
                    text = json.dumps(both)
                    self._room -= 0 if text in found else len(text)
                    found[text] = both
            if len(found) > _MAX_ALTERNATIVES or self._room < 0:
                raise Unsayable
        return list(found.values())

    def _refusing(self, schema: Any, context: Schema, depth: int) -> list[Schema]:
        """Alternatives that a value fits which fits ``context``, but not ``schema``."""
        if isinstance(schema, bool):
            return [] if schema else [{}]
        whole = self._whole(schema)
        if whole is None or depth > _MAX_DEPTH:
            raise Unsayable
        return [part for key in whole for part in self._refusing_keyword(key, whole, context, depth + 1)]

    def _refusing_keyword(self, key: str, schema: Schema, context: Schema, depth: int) -> list[Schema]:
        value, kinds = schema[key], kinds_of(context)
        if key in IMPLIED and not kinds & ({"number", "integer"} if IMPLIED[key] == "number" else {IMPLIED[key]}):
            return []
        if key in _OPPOSITE:
            return [{"type": "number" if "number" in kinds else "integer", _OPPOSITE[key]: value}]
        if key in _COUNTS:
            other, step = _COUNTS[key]
            return [{"type": IMPLIED[key], other: value + step}] if value + step >= 0 else []
        match key:
            case "type":
                return _other_types(value, kinds)
            case "const" | "enum":
                return [{"not": {"enum": literals({key: value})}}]
            case "required":
                return [{"type": "object", "properties": {name: False}} for name in as_list(value)]
            case "properties":
                return list(self._refusing_properties(value, context, depth))
            case "additionalProperties" if value is False:
                unlisted = [name for name in as_mapping(context.get("properties")) if name not in schema["properties"]]
                return [{"type": "object", "required": [name]} for name in unlisted]
            case "additionalProperties" if value in (True, {}):
                return []
            case "$defs" | "definitions":
                return []
            case "allOf":
                return [part for inner in as_list(value) for part in self._refusing(inner, context, depth)]
            case "anyOf":
                found: list[Schema] = [{}]
                for inner in as_list(value):
                    found = self._product(found, self._refusing(inner, context, depth))
                return found
            case "not":
                return self._fitting(value, depth)
        raise Unsayable

    def _refusing_properties(self, properties: Any, context: Schema, depth: int) -> Iterator[Schema]:
        for name, sub in as_mapping(properties).items():
            known = as_mapping(context.get("properties")).get(name)
            whole = self._whole(known) if isinstance(known, Mapping) else None
            for refused in self._refusing(sub, whole or {}, depth):
                yield {"type": "object", "properties": {name: refused}, "required": [name]}


def _counted(base: Schema, least: float = 0, most: float = math.inf) -> Iterator[list[Schema]]:
    """The choice of properties that at least, or at most, so many properties leave. Raises Unsayable for too many."""
    required = as_list(base.get("required"))
    optional = [name for name in as_mapping(base.get("properties")) if name not in required]
    wanted, barred = least - len(required), len(required) + len(optional) - most
    if most < len(required) or wanted > len(optional):
        yield []
    for count, name_them in ((wanted, _present), (barred, _absent)):
        if 0 < count <= len(optional):
            if math.comb(len(optional), int(count)) > _MAX_ALTERNATIVES:
                raise Unsayable
            yield [name_them(names) for names in itertools.combinations(optional, int(count))]


def _present(names: Sequence[str]) -> Schema:
    return {"required": list(names)}


def _absent(names: Sequence[str]) -> Schema:
    return {"properties": dict.fromkeys(names, False)}


def _closed(schema: Schema) -> Schema:
    """Without properties that it does not list."""
    if "allOf" in schema or "$ref" in schema:
        return {**schema, "unevaluatedProperties": False}
    return (
        schema
        if schema.get("additionalProperties", True) not in (True, {})
        else {**schema, "additionalProperties": False}
    )


def _opened(schema: Schema) -> Schema:
    """Open to other properties where it lists none but those that may not be there."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties or any(sub is not False for sub in properties.values()):
        return schema
    return {"additionalProperties": True, **schema}


def _other_types(declared: Any, kinds: frozenset[str]) -> list[Schema]:
    barred = {declared} if isinstance(declared, str) else set(declared)
    if "number" in barred:
        barred |= {"integer"}
    left = [kind for kind in _KINDS if kind in kinds - barred]
    if "integer" in barred and "number" in left:  # there is no word for numbers that are no integers
        left.remove("number")
        if not left:
            raise Unsayable
    if "number" in left and "integer" in left:
        left.remove("integer")
    return [{"type": left[0] if len(left) == 1 else left}] if left else []


def joined(one: Schema, other: Schema) -> Schema:
    """A schema that allows what both allow."""
    together = combined(one, other)
    if together is None:
        return {**one, "allOf": [*as_list(one.get("allOf")), other]} if other else one
    return settled(together)


def settled(schema: dict[str, Any]) -> dict[str, Any]:
    """With only those of the listed values that are allowed, as far as it is plain."""
    barred = {canonical(item) for item in _excluded(schema) or ()}
    items = literals(schema)
    if not items:
        return schema
    kinds = kinds_of({"type": schema["type"]}) if "type" in schema else frozenset(_KINDS)
    pattern = schema.get("pattern", "")
    kept = [
        item
        for item in items
        if canonical(item) not in barred
        and kind_of(item) in kinds
        and fits(item, schema)
        and (not isinstance(item, str) or matches(pattern, item) is not False)
    ]
    rest = {key: value for key, value in schema.items() if key not in ("not", "const", "enum")}
    return {**rest, "const": kept[0]} if "const" in schema and kept else {**rest, "enum": kept}


def possible(schema: Any) -> bool:
    """False where it is plain that no value fits."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, Mapping):
        return True
    schema = settled(dict(schema))
    if schema.get("type") == [] or schema.get("enum") == [] or not _bounds_leave_room(schema):
        return False
    properties, required = as_mapping(schema.get("properties")), as_list(schema.get("required"))
    if kinds_of(schema) != {"object"} or not required:
        return True
    if len(required) > schema.get("maxProperties", math.inf):
        return False
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    return all(possible(properties.get(name, not closed)) for name in required)


def _bounds_leave_room(schema: Schema) -> bool:
    for what in ("Length", "Items", "Properties"):
        if schema.get(f"min{what}", 0) > schema.get(f"max{what}", math.inf) and len(kinds_of(schema)) == 1:
            return False
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    room = low <= high and above < below and above < high and low < below
    return room or not kinds_of(schema) <= {"number", "integer"}


def _only(schema: Schema, key: str) -> Schema:
    return {key: schema[key]} if key in schema else {}
