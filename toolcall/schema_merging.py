"""Two schemas as one (``allOf``), and what tells the branches of a ``oneOf`` apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolcall.schema_values import as_list, as_mapping, canonical, literals

Schema = Mapping[str, Any]

_LARGEST = frozenset(("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"))
_SMALLEST = frozenset(("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"))
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OF_ARRAYS = frozenset(("items", "prefixItems", "unevaluatedItems", "contains"))
_TYPES = frozenset(("string", "number", "boolean", "object", "array", "null"))


def combined(one: Schema, other: Schema) -> dict[str, Any] | None:
    """A schema that allows what both allow; None where two keywords say it no better than ``allOf``."""
    one, other = _listing(one, other), _listing(other, one)
    if not _closes_alike(one, other) or not _closes_alike(other, one):
        return None
    if literals(one) and literals(other) and ("const" in one) != ("const" in other):
        one, other = _enumerated(one), _enumerated(other)
    if _OF_ARRAYS & one.keys() and _OF_ARRAYS & other.keys() and "prefixItems" in {*one, *other}:
        return None
    found = dict(one)
    for key, value in other.items():
        if key not in found:
            found[key] = value
            continue
        together = _both(key, found[key], value)
        if together is None:
            return None
        found[key] = together
    if found.get("type") == []:  # no value is of both types
        return {**one, "type": one["type"], "enum": []} if "const" not in one else {**_enumerated(one), "enum": []}
    return found


def _enumerated(schema: Schema) -> Schema:
    return {**{key: value for key, value in schema.items() if key != "const"}, "enum": literals(schema)}


def _listing(one: Schema, other: Schema) -> Schema:
    """The first, with those properties listed that only the second lists, as what it says of others has them."""
    others = one.get("additionalProperties", True)
    if others in (True, {}) or "patternProperties" in one:
        return one
    listed = as_mapping(one.get("properties"))
    more = {name: others for name in as_mapping(other.get("properties")) if name not in listed}
    return {**one, "properties": {**listed, **more}} if more else one


def _closes_alike(one: Schema, other: Schema) -> bool:
    """Whether what one schema says of properties that it does not list says nothing of the other's."""
    if all(one.get(key, True) in (True, {}) for key in _OTHERS):
        return True
    if not {"properties", "patternProperties"} & other.keys():
        return True
    if "patternProperties" in one or "patternProperties" in other:
        return False
    return set(as_mapping(other.get("properties"))) <= set(as_mapping(one.get("properties")))


def _union(*lists: list[Any]) -> list[Any]:
    found: list[Any] = []
    for name in (name for names in lists for name in names):
        if name not in found:
            found.append(name)
    return found


def _both(key: str, one: Any, other: Any) -> Any:
    """One keyword's value that holds two; None where there is none."""
    if one == other and type(one) is type(other):
        return one
    if key in _LARGEST or key in _SMALLEST:
        if not all(isinstance(bound, int | float) for bound in (one, other)):
            return None
        return max(one, other) if key in _LARGEST else min(one, other)
    if key == "type":
        return _types(one, other)
    if key == "required":
        return _union(as_list(one), as_list(other))
    if key == "enum" and isinstance(one, list) and isinstance(other, list):
        allowed = set(map(canonical, other))
        return [item for item in one if canonical(item) in allowed]
    if key == "not" and all(isinstance(no, Mapping) and no.keys() == {"enum"} for no in (one, other)):
        return {"enum": [*one["enum"], *other["enum"]]}
    if key in ("properties", "$defs", "definitions") and isinstance(one, Mapping) and isinstance(other, Mapping):
        found = dict(one)
        for name, sub in other.items():
            found[name] = _both_schemas(found[name], sub) if name in found else sub
        return found
    if key in ("items", *_OTHERS):
        return _both_schemas(one, other)
    return None


def _both_schemas(one: Any, other: Any) -> Any:
    for simple, left in ((one, other), (other, one)):
        if simple is True or simple == {}:
            return left
        if simple is False:
            return False
    together = combined(one, other) if isinstance(one, Mapping) and isinstance(other, Mapping) else None
    return {"allOf": [one, other]} if together is None else together


def _types(one: Any, other: Any) -> Any:
    ones, others = ([kinds] if isinstance(kinds, str) else list(kinds or ()) for kinds in (one, other))
    kinds = [kind for kind in ones if kind in others or (kind == "integer" and "number" in others)]
    kinds += [kind for kind in others if kind == "integer" and "number" in ones and kind not in kinds]
    return kinds[0] if len(kinds) == 1 else kinds


def excluding(schema: dict[str, Any]) -> None:
    """``not: {required: [name]}`` as a property that is not there; what a required property requires."""
    excluded = schema.get("not")
    if isinstance(excluded, Mapping) and excluded.keys() == {"required"} and len(as_list(excluded["required"])) == 1:
        (name,) = excluded["required"]
        if isinstance(schema.get("properties"), Mapping) and name not in schema.get("required", ()):
            schema["properties"] = {**schema["properties"], name: False}
            del schema["not"]
    depending = schema.get("dependentRequired")
    required = as_list(schema.get("required"))
    if isinstance(depending, Mapping) and depending.keys() <= set(map(str, required)):
        del schema["dependentRequired"]
        schema["required"] = _union(required, *map(as_list, depending.values()))


def required_tag(parts: Sequence[Schema], whole: Callable[[Any], Schema | None], beside: Schema) -> str | None:
    """What makes branches exclude each other: "" for their types, else the name of a property whose listed values
    differ from branch to branch. None where nothing does, as far as one sees."""
    kinds = [_kinds(part, beside) for part in parts]
    if all(kinds) and sum(map(len, kinds)) == len(frozenset().union(*kinds)):
        return ""
    if any(kind != {"object"} for kind in kinds):
        return None
    for name in as_mapping(parts[0].get("properties")):
        listed = [literals(whole(as_mapping(part.get("properties")).get(name)) or {}) for part in parts]
        if not all(listed) or not all(isinstance(item, str) for items in listed for item in items):
            continue
        if sum(map(len, map(set, listed))) == len({item for items in listed for item in items}):
            return name
    return None


def _kinds(part: Schema, beside: Schema) -> frozenset[str]:
    """The types of a branch, ``integer`` as the numbers that it is of; empty where it does not say."""
    declared = part.get("type", beside.get("type"))
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    return frozenset("number" if name == "integer" else name for name in names) & _TYPES
