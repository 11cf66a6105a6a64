"""Narrowing of single keywords: numbers, counts, strings, enumerations, arrays; what older drafts wrote otherwise.

Each function takes one schema without looking into those inside it, and returns one that allows the same or less.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from toolcall.constraint_formats import EXACT_FORMATS
from toolcall.regex_dialect import translated
from toolcall.schema import ALIASES, IMPLIED

Schema = Mapping[str, Any]

ANNOTATIONS = frozenset(
    ("title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly", "$comment",
     "$schema", "$id", "id", "$anchor", "$dynamicAnchor", "$vocabulary", "markdownDescription", "enumDescriptions",
     "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "xml", "externalDocs", "x-guidance")
)  # fmt: skip
"""What says nothing about which values are allowed, and ``x-guidance``, the compiler's own options."""
KNOWN_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "idn-email",
     "idn-hostname", "iri", "iri-reference", "uri-reference", "uri-template", "json-pointer", "relative-json-pointer",
     "regex")
)  # fmt: skip
"""Formats that JSON Schema defines. Any other is an annotation: no validator can hold a value to it."""
_UNTYPED = frozenset(("type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf", "not", "if", "$dynamicRef"))
_TYPES = ("string", "integer", "number", "boolean", "object", "array", "null")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
_LARGEST_INTEGER = 2**63 - 1024
"""The last integer below 2**63 that a double holds: the compiler counts bounds in these two."""
_LARGEST, _SMALLEST = 1e18, 1e-15
"""Bounds of numbers that are no integers: digits that the compiler writes out."""
_MAX_PATTERN = 16_000


def plain(schema: Schema) -> dict[str, Any]:
    """Without annotations, and in the words of draft 2020-12."""
    found = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    _types(found)
    for low, strict in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(strict), bool) and found.pop(strict) and low in found:  # draft 4
            found[strict] = found.pop(low)
    if isinstance(found.get("items"), list):
        found["prefixItems"] = found.pop("items")
        if "additionalItems" in found:
            found["items"] = found.pop("additionalItems")
    found.pop("additionalItems", None)
    if not isinstance(found.get("required", []), list):
        del found["required"]  # draft 3, in a property
    if isinstance(dependencies := found.get("dependencies"), Mapping):
        lists = {key: value for key, value in dependencies.items() if isinstance(value, list)}
        if len(lists) == len(dependencies):
            del found["dependencies"]
            found["dependentRequired"] = {**lists, **found.get("dependentRequired", {})}
    for key in _COUNTS:
        if isinstance(found.get(key), float) and found[key].is_integer():
            found[key] = int(found[key])
    return found


def _types(schema: dict[str, Any]) -> None:
    declared = schema.get("type")
    if "type" in schema and not (isinstance(declared, str) and declared in _TYPES):
        names = declared if isinstance(declared, list) else [declared]
        kinds = [kind for name in names if isinstance(name, str) and (kind := ALIASES.get(name.strip().lower()))]
        schema["type"] = kinds if isinstance(declared, list) else kinds[0] if kinds else "any"
        if not kinds or "any" in kinds:
            del schema["type"]


def typed(schema: dict[str, Any]) -> None:
    """Add the type that a schema without one speaks of: ``{"minimum": 3}`` allows any text, and means a number."""
    implied = {IMPLIED[key] for key in schema if key in IMPLIED}
    if len(implied) == 1 and not _UNTYPED & schema.keys():
        (schema["type"],) = implied


def values(schema: dict[str, Any]) -> dict[str, Any]:
    """The keywords of numbers, strings, enumerations and arrays as the compiler can hold them."""
    _numbers(schema)
    _strings(schema)
    _excluded(schema)
    _listed(schema)
    if schema.get("uniqueItems") is False or (schema.get("uniqueItems") is True and schema.get("maxItems", 2) <= 1):
        del schema["uniqueItems"]
    if schema.get("contains") is True:
        schema["contains"] = {}
    if "contains" in schema and schema.get("minContains") == 0 and "maxContains" not in schema:
        del schema["contains"], schema["minContains"]
    return schema


def _numbers(schema: dict[str, Any]) -> None:
    whole = schema.get("type") == "integer"
    if not whole and _beyond_digits(schema):
        return
    for key in _BOUNDS:
        bound = schema.get(key)
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
            continue
        lower = key in ("minimum", "exclusiveMinimum")
        schema[key] = _integer_bound(bound, lower) if whole else _bound(bound, lower)


def _beyond_digits(schema: Schema) -> bool:
    """Whether all the numbers that are allowed are larger than bounds can be."""
    lows = [schema.get(key) for key in ("minimum", "exclusiveMinimum")]
    highs = [schema.get(key) for key in ("maximum", "exclusiveMaximum")]
    return any(isinstance(low, int | float) and low >= _LARGEST for low in lows) or any(
        isinstance(high, int | float) and high <= -_LARGEST for high in highs
    )


def _integer_bound(bound: float, lower: bool) -> float:
    if lower and bound < -_LARGEST_INTEGER:
        return -_LARGEST_INTEGER
    if not lower and bound > _LARGEST_INTEGER:
        return _LARGEST_INTEGER
    if isinstance(bound, float) or abs(bound) <= 2**53:
        return bound
    nearest = int(float(bound))
    if (lower and nearest < bound) or (not lower and nearest > bound):
        nearest = int(math.nextafter(float(bound), math.inf if lower else -math.inf))
    return nearest


def _bound(bound: float, lower: bool) -> float:
    if lower:
        return -_bound(-bound, False)
    if bound > _LARGEST:
        return _LARGEST
    return -_SMALLEST if -_SMALLEST < bound < 0 else bound


def _strings(schema: dict[str, Any]) -> None:
    if isinstance(pattern := schema.get("pattern"), str):
        schema["pattern"] = ecma(pattern)
    name = schema.get("format")
    if not isinstance(name, str):
        return
    if name not in KNOWN_FORMATS or not _may_be_string(schema):
        del schema["format"]
    elif name in EXACT_FORMATS and "pattern" not in schema:
        del schema["format"]
        schema["pattern"] = ecma(f"^(?:{EXACT_FORMATS[name]})$")


def ecma(pattern: str) -> str:
    """The pattern in the compiler's words, or as it is where that would be too long."""
    found = translated(pattern)
    return found if len(found) <= max(_MAX_PATTERN, len(pattern)) else pattern


def _may_be_string(schema: Schema) -> bool:
    declared = schema.get("type", "string")
    return declared == "string" or (isinstance(declared, list) and "string" in declared)


def _excluded(schema: dict[str, Any]) -> None:
    """``not`` of types, where the other types say the same."""
    excluded = schema.get("not")
    if not isinstance(excluded, Mapping) or len(excluded) != 1:
        return
    ((key, value),) = excluded.items()
    if key == "type":
        barred = set([value] if isinstance(value, str) else value)
        barred |= {"integer"} if "number" in barred else {"number"} if "integer" in barred else set()
        declared = schema.get("type", list(_TYPES))
        schema["type"] = [
            kind for kind in ([declared] if isinstance(declared, str) else declared) if kind not in barred
        ]
        if schema["type"]:
            del schema["not"]


def as_mapping(value: Any) -> Mapping[str, Any]:
    """What stands in a schema where an object belongs; nothing where it is none."""
    return value if isinstance(value, Mapping) else {}


def as_list(value: Any) -> list[Any]:
    """What stands in a schema where a list belongs; nothing where it is none."""
    return value if isinstance(value, list) else []


def literals(schema: Schema) -> list[Any]:
    """The values that a schema lists; [] where it lists none."""
    if "const" in schema:
        return [schema["const"]]
    listed = schema.get("enum")
    return list(listed) if isinstance(listed, list) else []


def _listed(schema: dict[str, Any]) -> None:
    """Listed values that are too long, short, large or small go; the keywords that say so then go too."""
    if not isinstance(schema.get("enum"), list) and "const" not in schema:
        return
    items, kinds = literals(schema), kinds_of(schema)
    kept = [item for item in items if fits(item, schema) and kind_of(item) in kinds]
    if not kept:
        return
    for key in ("minLength", "maxLength", *_BOUNDS):
        schema.pop(key, None)
    if len(kept) < len(items):
        schema.pop("const", None)
        schema["enum"] = kept


def fits(item: Any, schema: Schema) -> bool:
    """Whether a value is as long, or as large, as a schema says."""
    if isinstance(item, str):
        low, high = schema.get("minLength", 0), schema.get("maxLength", len(item))
        return not isinstance(low, int) or not isinstance(high, int) or low <= len(item) <= high
    if isinstance(item, bool) or not isinstance(item, int | float):
        return True
    return (
        schema.get("minimum", item) <= item <= schema.get("maximum", item)
        and not item <= schema.get("exclusiveMinimum", -math.inf)
        and not item >= schema.get("exclusiveMaximum", math.inf)
    )


def kinds_of(schema: Schema) -> frozenset[str]:
    """The types that a schema allows by name or by the values that it lists; ``number`` has the integers with it."""
    declared = schema.get("type")
    if (listed := literals(schema)) and declared is None:
        return frozenset(map(kind_of, listed))
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else list(_TYPES)
    return frozenset(names) | ({"integer"} if "number" in names else set())


def kind_of(value: Any) -> str:
    """The type of a value; that of whole numbers is ``integer``."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if float(value).is_integer() else "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def matches(pattern: Any, text: str) -> bool | None:
    """Whether a pattern, in ECMA's words or the compiler's, is found in a text; None where Python cannot say."""
    try:
        return re.search(re.sub(r"\\x\{([0-9a-f]+)\}", lambda code: f"\\U{code[1]:0>8}", pattern), text) is not None
    except (re.error, TypeError, OverflowError):
        return None


def canonical(value: Any) -> str:
    """The same text for equal values: ``1`` and ``1.0`` are one number, ``1`` and ``true`` are not."""
    return json.dumps(_whole_numbers(value), sort_keys=True)


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
