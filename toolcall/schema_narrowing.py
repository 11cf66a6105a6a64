"""A client's schema in words that a grammar can hold: every value that the result allows, the schema allows too.

The compiler knows a part of JSON Schema. Much of the rest can be said in its words, or in words that allow a little
less: parts of an ``allOf`` are put together, the branches of a ``oneOf`` that exclude each other are those of an
``anyOf``, ``propertyNames`` becomes the names themselves, objects that list properties are closed to others. What is
beyond that stays as it is, for the compiler to refuse by name.

An object must not be closed where others add properties to it: where it is a part of an ``allOf`` or beside a ``$ref``.
In a ``oneOf`` whose branches may overlap nothing is narrowed, since what one branch no longer allows another might.
Definitions that are referred to from such places come once more, under a name of their own.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote

from toolcall.constraint_formats import RAW_FORMATS
from toolcall.schema_alternatives import alternatives, joined, possible
from toolcall.schema_excluding import without_names, without_values
from toolcall.schema_merging import combined, excluding, required_tag
from toolcall.schema_references import follow
from toolcall.schema_values import Schema, ecma, literals, matches, plain, typed, values

_COMPOSING = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "unevaluatedProperties", "dependentSchemas",
     "dependencies", "propertyNames")
)  # fmt: skip
_OF_OBJECTS = frozenset(("properties", "required", "additionalProperties", "patternProperties"))
_INSIDE = frozenset(("items", "prefixItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"))
_PLAIN_NAME = re.compile(r"#/(\$defs|definitions)/([A-Za-z0-9_.-]+)")
Mode = Literal["closed", "open", "exact"]
_MAX_DEPTH = 64
_MAX_REMEMBERED = 16_000
"""Characters of a schema whose narrowed form is kept."""
_MAX_INLINED = 200_000
"""Characters of parts of ``allOf`` and branches of ``oneOf`` that are looked into: what they refer to is copied."""


def narrowed(schema: Schema) -> Schema:
    """The schema in the compiler's words; see the module's text. One that is malformed comes back as it is."""
    try:
        text = json.dumps(schema)
        return _narrowed_text(text) if len(text) <= _MAX_REMEMBERED else _Narrower(schema).result()
    except (TypeError, ValueError, AttributeError, LookupError, RecursionError):
        return schema


@lru_cache(maxsize=256)
def _narrowed_text(text: str) -> Schema:
    """Clients send the same tools again with every request."""
    return _Narrower(json.loads(text)).result()


class _Narrower:
    """One schema's walk. Definitions are narrowed as they are referred to."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._names: dict[tuple[str, Mode], tuple[str, str]] = {}
        self._found: dict[str, dict[str, Any]] = {"$defs": {}, "definitions": {}}
        self._taken = {key for place in self._found if isinstance(root.get(place), Mapping) for key in root[place]}
        self._todo: list[tuple[str, Mode]] = []
        self._room = _MAX_INLINED

    def result(self) -> Schema:
        whole = self._schema(self._root, "closed", 0)
        while self._todo:
            reference, mode = self._todo.pop()
            place, name = self._names[reference, mode]
            self._found[place][name] = self._schema(follow(reference, self._root), mode, 0)
        if not isinstance(whole, dict):
            return self._root
        return {**whole, **{place: found for place, found in self._found.items() if found}}

    def _reference(self, reference: str, mode: Mode) -> str:
        """The reference to lead to the definition's narrowed form; as it was where it leads nowhere."""
        if not isinstance(follow(reference, self._root), Mapping | bool):
            return reference
        key = (reference, mode)
        if key not in self._names:
            named = _PLAIN_NAME.fullmatch(reference)
            if named is not None and mode == "closed":
                self._names[key] = (named[1], named[2])
            else:
                stem = re.sub(r"[^A-Za-z0-9_.-]", "_", unquote(reference.rpartition("/")[2]))[:64] or "schema"
                self._names[key] = ("$defs", self._free_name(stem if mode == "closed" else f"{stem}.{mode}"))
            self._todo.append(key)
        place, name = self._names[key]
        return f"#/{place}/{name}"

    def _free_name(self, stem: str) -> str:
        name, count = stem, 1
        while name in self._taken:
            count += 1
            name = f"{stem}.{count}"
        self._taken.add(name)
        return name

    def _schema(self, schema: Any, mode: Mode, depth: int) -> Any:
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return schema
        found = self._merged(plain(schema), depth)
        if mode != "exact" and "$ref" in found and _OF_OBJECTS & found.keys():  # so that it can be closed
            found = self._inlined(found, depth) or found
        for key in ("$defs", "definitions"):
            found.pop(key, None)
        _evaluated(found)
        if mode != "exact":
            found = self._exclusive(found)
            typed(found)
            expanded = self._alternatives(found, depth)
            if isinstance(expanded, bool):
                return expanded
            found = expanded
        excluding(found)
        self._names_of_properties(found, depth + 1)
        found = values(found)
        without_values(found)
        if isinstance(found.get("$ref"), str):
            inner: Mode = "open" if mode == "closed" and len(found) > 1 else mode
            found["$ref"] = self._reference(found["$ref"], inner)
        found = self._parts(found, mode, depth + 1)
        if mode == "closed":
            found = _closed(found)
            without_names(found)
        return found

    def _alternatives(self, schema: dict[str, Any], depth: int) -> dict[str, Any] | bool:
        """The schema with its conditions as a choice; as it is where that cannot be said."""
        found = alternatives(schema, lambda part: self._inlined(part, depth + 1))
        if found is None:
            return schema
        return dict(found[0]) if len(found) == 1 else {"anyOf": found} if found else False

    def _parts(self, schema: dict[str, Any], mode: Mode, depth: int) -> dict[str, Any]:
        """The schemas inside, each narrowed."""
        opened: Mode = "open" if mode == "closed" else mode
        added_to = bool(_OF_OBJECTS & schema.keys())
        for key, value in schema.items():
            if key == "properties" and isinstance(value, Mapping):
                schema[key] = {name: self._schema(sub, mode, depth) for name, sub in value.items()}
            elif key == "patternProperties" and isinstance(value, Mapping):
                schema[key] = {ecma(name): self._schema(sub, mode, depth) for name, sub in value.items()}
            elif key in _INSIDE:
                schema[key] = self._each(value, mode, depth)
            elif key == "anyOf":
                schema[key] = self._any(value, opened if added_to else mode, depth)
            elif key == "allOf":
                schema[key] = self._each(value, opened, depth)
            elif key == "oneOf":
                schema[key] = self._each(value, "exact", depth)
        if schema.get("additionalProperties") is False:
            _without_impossible(schema)
        if mode != "exact" and "contains" in schema and schema.get("type") == "array" and "maxContains" not in schema:
            self._containing(schema, mode, depth)
        return schema

    def _containing(self, schema: dict[str, Any], mode: Mode, depth: int) -> None:
        """What is to be contained as items that are: such as all are, and such as are asked for."""
        item, asked = (self._inlined(schema.get(key, {}), depth) for key in ("items", "contains"))
        if item is not None and asked is not None:
            schema["contains"] = self._schema(joined(item, asked), mode, depth)

    def _each(self, value: Any, mode: Mode, depth: int) -> Any:
        if isinstance(value, list):
            return [self._schema(item, mode, depth) for item in value]
        return self._schema(value, mode, depth)

    def _any(self, value: Any, mode: Mode, depth: int) -> Any:
        """The branches of an ``anyOf``, but for those that no value fits."""
        found = self._each(value, mode, depth)
        return (list(filter(possible, found)) or found) if isinstance(found, list) else found

    def _merged(self, schema: dict[str, Any], depth: int) -> dict[str, Any]:
        """With the parts of its ``allOf`` put together with it, as far as that is possible."""
        parts = schema.get("allOf")
        if not isinstance(parts, list) or depth > _MAX_DEPTH:
            return schema
        found = {key: value for key, value in schema.items() if key not in ("allOf", "unevaluatedProperties")}
        unevaluated = {key: schema[key] for key in ("unevaluatedProperties",) if key in schema}
        left = []
        for part in parts:
            whole = self._inlined(part, depth + 1) if part is not True else {}
            together = combined(found, whole) if whole is not None else None
            if together is None:
                left.append(part)
            else:
                found = together
        return {**found, "allOf": left, **unevaluated} if left else {**found, **unevaluated}

    def _inlined(self, schema: Any, depth: int) -> dict[str, Any] | None:
        """A part with what it refers to in place of the reference; None where that is too much."""
        if not isinstance(schema, Mapping) or self._room <= 0 or depth > _MAX_DEPTH:
            return None
        self._room -= 64 + len(json.dumps(schema))
        found: dict[str, Any] | None = plain(schema)
        for _ in range(_MAX_DEPTH):
            if found is None or not isinstance(found.get("$ref"), str):
                break
            target = follow(found.pop("$ref"), self._root)
            if not isinstance(target, Mapping) or self._room <= 0:
                return None
            self._room -= len(json.dumps(target))
            found = combined(plain(target), found)
        return None if found is None or "$ref" in found else self._merged(found, depth)

    def _exclusive(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A ``oneOf`` whose branches exclude each other is an ``anyOf``; so is one that a tag tells apart, which is
        then required."""
        branches = schema.get("oneOf")
        if not isinstance(branches, list) or "anyOf" in schema:
            return schema
        whole = [self._inlined(branch, 0) for branch in branches]
        if any(branch is None for branch in whole):
            return schema
        parts = [branch for branch in whole if branch is not None]
        rest = {key: value for key, value in schema.items() if key != "oneOf"}
        if all(part.keys() <= {"const", "enum", "type"} and literals(part) for part in parts):
            listed = [item for part in parts for item in literals(part)]
            if not rest.keys() - {"type"} and len({repr((type(item), item)) for item in listed}) == len(listed):
                return {**rest, "enum": listed} if _same_types(parts) else {**rest, "anyOf": branches}
        tag = required_tag(parts, lambda sub: self._inlined(sub, 0), rest)
        if tag is None:
            return schema
        tagged = [
            branch
            if not tag or tag in part.get("required", ())
            else {**part, "required": [*part.get("required", ()), tag]}
            for branch, part in zip(branches, parts, strict=True)
        ]
        return {**rest, "anyOf": tagged}

    def _names_of_properties(self, schema: dict[str, Any], depth: int) -> None:
        """``propertyNames`` as the names themselves, or as a pattern of theirs."""
        names = schema.get("propertyNames")
        if not isinstance(names, Mapping | bool):
            return
        whole = self._inlined(names, depth) if isinstance(names, Mapping) else {} if names else {"enum": []}
        names = self._schema({**whole, "type": "string"}, "open", depth) if whole is not None else None
        if not isinstance(names, dict):
            return
        others = schema.get("additionalProperties", True)
        listed = schema.get("properties")
        listed = listed if isinstance(listed, Mapping) else {}
        keys = _listed_names(names)
        if not names.keys() - {"type"}:
            del schema["propertyNames"]
        elif "patternProperties" in schema:
            return
        elif keys or names.get("enum") == []:
            del schema["propertyNames"]
            schema["properties"] = {name: listed.get(name, others) for name in keys}
            schema["additionalProperties"] = False
        elif (pattern := _only_pattern(names)) is None:
            return
        elif not listed:
            del schema["propertyNames"]
            schema["patternProperties"] = {pattern: others}
            schema["additionalProperties"] = False
        elif "additionalProperties" not in schema or others is False:
            fitting = {name: matches(pattern, name) for name in listed}
            if None not in fitting.values():
                del schema["propertyNames"]
                schema["properties"] = {name: sub for name, sub in listed.items() if fitting[name]}
                schema["additionalProperties"] = False


def _listed_names(names: Any) -> list[str]:
    """The names that a schema of names lists, where it says nothing else."""
    if not isinstance(names, Mapping):
        return []
    if names.keys() <= {"type", "anyOf"} and "anyOf" in names:
        parts = [_listed_names(part) for part in names["anyOf"]]
        return list(dict.fromkeys(name for part in parts for name in part)) if all(parts) else []
    return (
        [name for name in literals(names) if isinstance(name, str)] if names.keys() <= {"type", "enum", "const"} else []
    )


def _only_pattern(names: Schema) -> str | None:
    """The pattern that is all that a schema of names says."""
    if names.keys() <= {"type", "minLength", "maxLength"}:
        return f"^(?s:.{{{names.get('minLength', 0)},{names.get('maxLength', '')}}})$"
    if names.keys() == {"type", "format"} and names["format"] in RAW_FORMATS:
        return ecma(f"^(?:{RAW_FORMATS[names['format']]})$")
    return str(names["pattern"]) if names.keys() == {"type", "pattern"} else None


def _same_types(parts: Sequence[Schema]) -> bool:
    """Whether no branch limits its values by a type of its own that they do not have."""
    return all("type" not in part for part in parts) or len({repr(part.get("type")) for part in parts}) == 1


def _evaluated(schema: dict[str, Any]) -> None:
    """``unevaluated...`` as the words for what is not listed, where nothing else could have evaluated it."""
    for unevaluated, others in (("unevaluatedProperties", "additionalProperties"), ("unevaluatedItems", "items")):
        if (
            unevaluated in schema
            and not (_COMPOSING | {"contains"}) - {unevaluated, "patternProperties"} & schema.keys()
        ):
            rest = schema.pop(unevaluated)
            schema.setdefault(others, rest)


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    """An object that lists properties closed to others. One that requires a property it does not list stays open."""
    if (
        "patternProperties" in schema
        and schema.get("type") == "object"
        and not _COMPOSING - {"patternProperties"} & schema.keys()
    ):
        schema["additionalProperties"] = False  # the compiler would take names that are spelt with escapes for others
    if "properties" not in schema or "additionalProperties" in schema or _COMPOSING & schema.keys():
        return schema
    listed, required = schema["properties"], schema.get("required")
    if not isinstance(listed, Mapping) or schema.get("minProperties", 0) > len(listed):
        return schema
    if isinstance(required, list) and not all(isinstance(name, str) and name in listed for name in required):
        return schema
    schema["additionalProperties"] = False
    _without_impossible(schema)
    return schema


def _without_impossible(schema: dict[str, Any]) -> None:
    """Of a closed object, without properties that no value has, and counts of properties that every value keeps."""
    listed, required = schema.get("properties"), schema.get("required")
    names = required if isinstance(required, list) else []
    if isinstance(listed, Mapping):
        schema["properties"] = {name: sub for name, sub in listed.items() if sub is not False or name in names}
    if schema.get("minProperties", math.inf) <= len(names):
        del schema["minProperties"]
    most = len(schema["properties"]) if isinstance(listed, Mapping) and "patternProperties" not in schema else math.inf
    if schema.get("maxProperties", -1) >= most:
        del schema["maxProperties"]
