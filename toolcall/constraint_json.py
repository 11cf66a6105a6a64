"""Lark rules for JSON values. The compiler writes them from the schema itself but for arrays whose items are to differ
(``uniqueItems``) or to hold some value (``contains``): those are rules here, and so is what lies around them.

Such a rule has a parameter of 64 bits: one for each value that was written, or a count of the items that were asked for
and one of all. What no rule can be written for is left to the compiler, which refuses it by the keyword's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.messages import GrammarSpec
from toolcall.lark import Rules, compiled_json, lark_literal, sequence
from toolcall.schema_alternatives import joined, possible, settled
from toolcall.schema_parts import WholeSchema, definitions, resolved
from toolcall.schema_references import follow
from toolcall.schema_values import Schema, as_list, as_mapping, canonical, literals

OF_ITEMS = frozenset(("uniqueItems", "contains", "minContains", "maxContains"))
_BITS = 64
_MAX_COUNT = 1 << 16
_MAX_CONTAINS = 16
_MAX_LIST = 1000
"""Bounds of lists around those that are rules."""
_MAX_DEPTH = 64
_ANNOTATED = frozenset(("$defs", "definitions", "x-guidance"))
_OF_FINITE = frozenset(("type", "enum", "const", "anyOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
_OF_OBJECT = frozenset(("type", "properties", "required", "additionalProperties"))
_OF_ARRAY = frozenset(("type", "items", "minItems", "maxItems")) | OF_ITEMS


def json_rule(rules: Rules, schema: Schema, *, flexible: bool, lenient: bool = False) -> str:
    """A rule for a JSON value of this schema."""
    return _Writer(rules, schema, flexible, lenient).value(schema, 0)


def value_spec(schema: Schema, *, lenient: bool = False) -> GrammarSpec:
    """A grammar of nothing but a value of this schema."""
    rules = Rules()
    return GrammarSpec(kind="lark", source=rules.text(json_rule(rules, schema, flexible=True, lenient=lenient)))


def unheld(schema: Schema, root: Schema) -> frozenset[str]:
    """The keywords of one array's items that no rule holds, whatever lies around it; empty for other schemas."""
    asked = frozenset(key for key in OF_ITEMS & schema.keys() if schema[key] is not False)
    if schema.get("type") != "array" or not schema.keys() <= _OF_ARRAY | _ANNOTATED:
        return asked
    contains = asked - {"uniqueItems"}
    if "uniqueItems" in asked:
        return contains if _distinct({**definitions(root), **schema}) is not None else frozenset(("uniqueItems",))
    return contains if contains and _counts(schema) is None else frozenset()


def _distinct(schema: Schema) -> list[Any] | None:
    """The values that the items of an array may have, where they can be told apart by bits."""
    values = finite({**definitions(schema), **as_mapping(schema.get("items"))})
    return values if values and schema.get("minItems", 0) <= len(values) else None


def _counts(schema: Schema) -> tuple[int, int, int | None] | None:
    """(minContains, minItems, maxItems) of an array with ``contains``; None where rules cannot count so far."""
    asked, low, high = schema.get("minContains", 1), schema.get("minItems", 0), schema.get("maxItems")
    fits = "maxContains" not in schema and 0 < asked <= _MAX_CONTAINS and max(low, high or 0) < _MAX_COUNT
    if not fits or (high is not None and high < max(asked, low)):
        return None
    return asked, max(asked, low), high


def finite(schema: Schema, depth: int = 0) -> list[Any] | None:
    """The values that a schema allows, each once; None for too many, or if one cannot tell."""
    schema = resolved(schema)
    if depth > _MAX_DEPTH or not schema.keys() <= _OF_FINITE | _ANNOTATED:
        return None
    found: list[Any] | None
    keys = schema.keys() - _ANNOTATED
    if keys == {"anyOf"}:
        parts = [finite({**definitions(schema), **part}, depth + 1) for part in schema["anyOf"]]
        found = None if None in parts else [value for part in parts for value in part or ()]
    elif literals(schema):
        found = literals(settled(dict(schema))) if keys <= {"type", "enum", "const"} else None
    else:
        found = _of_type(schema) if "anyOf" not in keys else None
    if found is None or len(found) > _BITS:
        return None
    return list({canonical(value): value for value in found}.values())


def _of_type(schema: Schema) -> list[Any] | None:
    kinds = [schema.get("type")] if isinstance(schema.get("type"), str) else schema.get("type")
    found: list[Any] = []
    for kind in kinds or ("any",):
        if kind == "integer":
            low = max(schema.get("minimum", -_MAX_COUNT), schema.get("exclusiveMinimum", -_MAX_COUNT) + 1)
            high = min(schema.get("maximum", _MAX_COUNT), schema.get("exclusiveMaximum", _MAX_COUNT) - 1)
            if not (isinstance(low, int) and isinstance(high, int)) or high - low >= _BITS:
                return None
            found += range(low, high + 1)
        elif kind in ("boolean", "null"):
            found += [True, False] if kind == "boolean" else [None]
        else:
            return None
    return found


class _Writer:
    """Writes the rules of one schema."""

    def __init__(self, rules: Rules, root: Schema, flexible: bool, lenient: bool) -> None:
        self._rules = rules
        self._root = root
        self._whole = WholeSchema(root)
        self._options = {"flexible": flexible, "lenient": lenient}
        self._asking: dict[str, bool] = {}
        self._gap = "WS?" if flexible else ""
        self._comma = 'WS? "," WS?' if flexible else '", "'
        self._colon = 'WS? ":" WS?' if flexible else '": "'

    def value(self, schema: Any, depth: int) -> str:
        written = self._written(schema, depth + 1) if depth < _MAX_DEPTH and self._asks(schema) else None
        if written is not None:
            return written
        part = schema if schema is self._root else self._whole.part(schema)
        return compiled_json(self._rules, part, **self._options)

    def _asks(self, node: Any) -> bool:
        """Whether there is something to write in a schema, or in what it refers to."""
        if isinstance(node, list):
            return any(map(self._asks, node))
        if not isinstance(node, Mapping):
            return False
        if any(node.get(key, False) is not False for key in OF_ITEMS):
            return True
        if isinstance(reference := node.get("$ref"), str) and reference not in self._asking:
            self._asking[reference] = False  # in a circle
            self._asking[reference] = self._asks(follow(reference, self._root))
        if self._asking.get(node.get("$ref", "")):
            return True
        return any(self._asks(value) for key, value in node.items() if key not in _ANNOTATED)

    def _written(self, schema: Schema, depth: int) -> str | None:
        keys = schema.keys() - _ANNOTATED
        if keys == {"$ref"}:
            return self._reference(schema["$ref"], depth)
        if keys <= {"anyOf", "type"} and "anyOf" in keys:
            return self._union(schema, depth)
        if schema.get("type") == "object" and keys <= _OF_OBJECT and schema.get("additionalProperties") is False:
            return self._object(schema, depth)
        if schema.get("type") == "array" and keys <= _OF_ARRAY:
            return self._array(schema, depth)
        return None

    def _reference(self, reference: str, depth: int) -> str | None:
        target = follow(reference, self._root)
        if not isinstance(target, Mapping):
            return None
        name = f"ref_{self._rules.number('ref', reference, json.dumps(self._root), str(self._options))}"
        if not self._rules.defined(name):
            self._rules.define(name, "")
            self._rules.define(name, self.value(target, depth))
        return name

    def _union(self, schema: Schema, depth: int) -> str | None:
        branches = schema["anyOf"]
        if "type" in schema and any(
            resolved({**definitions(self._root), **part}).get("type") != schema["type"] for part in branches
        ):
            return None
        bodies = [self.value(part, depth) for part in branches if possible(part)]
        return self._rules.add("either", " | ".join(dict.fromkeys(bodies))) if bodies else None

    def _object(self, schema: Schema, depth: int) -> str | None:
        required = as_list(schema.get("required"))
        properties = {
            k: sub for k, sub in as_mapping(schema.get("properties")).items() if sub is not False or k in required
        }
        if not all(possible(properties.get(name, False)) for name in required):
            return None
        elements = [
            f"{lark_literal(json.dumps(name, ensure_ascii=False))} {self._colon} {self.value(sub, depth)}"
            for name, sub in properties.items()
        ]
        body = sequence(self._rules, elements, [name in required for name in properties], self._comma)
        return self._enclosed("{", body, "}")

    def _enclosed(self, start: str, body: str, end: str) -> str:
        return " ".join(part for part in (f'"{start}"', self._gap, body, self._gap if body else "", f'"{end}"') if part)

    def _array(self, schema: Schema, depth: int) -> str | None:
        if unheld(schema, self._root) or not possible(schema.get("items", True)):
            return None
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if high == 0:
            return self._enclosed("[", "", "]") if not low and "contains" not in schema else None
        if schema.get("uniqueItems"):
            return self._different(_distinct({**definitions(self._root), **schema}) or [], low, high)
        if "contains" in schema:
            return self._containing(schema, depth)
        if not low <= (low if high is None else high) <= _MAX_LIST:
            return None
        item = self.value(schema.get("items", {}), depth)
        most = "" if high is None else high - 1
        body = self._enclosed("[", f"{item} ({self._comma} {item}){{{max(low - 1, 0)},{most}}}", "]")
        return self._rules.add("list", body if low else f"{self._enclosed('[', '', ']')} | {body}")

    def _different(self, values: Sequence[Any], low: int, high: int | None) -> str:
        """Items of which each has its bit, which says that it was written."""
        number = self._rules.number("different", json.dumps(values), low, high, self._comma)
        item, rest = f"item_{number}", f"more_{number}"
        bodies = [
            f"{self._constant(value)} {rest}::set_bit({bit}) %if bit_clear({bit})" for bit, value in enumerate(values)
        ]
        self._rules.define(f"{item}::_", " | ".join(bodies))
        enough = f" %if bit_count_ge(_, {low})" if low > 1 else ""
        more = f"%if bit_count_lt(_, {min(len(values), high or len(values))})"
        self._rules.define(f"{rest}::_", f'""{enough} | {self._comma} {item}::_ {more}')
        return self._list_of(f"{item}::0x0", low)

    def _constant(self, value: Any) -> str:
        if isinstance(value, list | dict):
            return compiled_json(self._rules, {"const": value}, **self._options)
        return lark_literal(json.dumps(value, ensure_ascii=False))

    def _containing(self, schema: Schema, depth: int) -> str | None:
        """Items with a count of those that are asked for in the lowest bits, and one of the commas above them."""
        counts = _counts(schema)
        items = resolved({**definitions(self._root), **as_mapping(schema.get("items"))})
        both = joined(items, as_mapping(schema["contains"]))
        if counts is None or schema["contains"] is False or not possible(both):
            return None
        asked, low, high = counts
        both = {key: value for key, value in both.items() if key not in _ANNOTATED}
        one, other = self.value(both, depth), self.value(schema.get("items", {}), depth)
        number = self._rules.number("containing", one, other, asked, low, high, self._comma)
        item, rest = f"item_{number}", f"more_{number}"
        found, commas = "[0:8]", "[8:32]"
        in_time = f" %if {_in_time(asked, high, found, commas)}" if high is not None else ""
        self._rules.define(
            f"{item}::_", f"{one} {rest}::incr({found}) %if lt({found}, {asked}) | {other} {rest}::_{in_time}"
        )
        enough = f"%if and(ge({found}, {asked}), ge({commas}, {low - 1}))"
        last = low - 1 if high is None else high - 1
        more = f"{self._comma} {item}::incr({commas}) %if lt({commas}, {last})" if last else ""
        if high is None:
            more += f"{' | ' if more else ''}{self._comma} {item}::_ %if ge({commas}, {last})"
        self._rules.define(f"{rest}::_", " | ".join(part for part in (f'"" {enough}', more) if part))
        return self._list_of(f"{item}::0x0", 1)

    def _list_of(self, items: str, low: int) -> str:
        body = self._enclosed("[", items, "]")
        return self._rules.add("list", body if low else f"{self._enclosed('[', '', ']')} | {body}")


def _in_time(asked: int, high: int, found: str, commas: str) -> str:
    """The condition under which another item than one that is asked for leaves room for those that still are."""
    condition = f"ge({found}, {asked})"
    for count in range(asked):
        if (room := high - 1 - asked + count) >= 0:
            condition = f"or({condition}, and(ge({found}, {count}), lt({commas}, {room + 1})))"
    return condition
