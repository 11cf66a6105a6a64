"""Lark rules for the arguments of a call as one element per parameter, and what those cannot enforce."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolcall.constraint_raw import inner_anchor, raw_value, writable
from toolcall.constraint_styles import TaggedArguments
from toolcall.lark import Rules, Schema, json_rule, lark_literal
from toolcall.schema import IMPLIED
from toolcall.schema_merging import combined
from toolcall.schema_references import escaped, follow
from toolcall.schema_values import literals

_WHOLE_OBJECT = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "propertyNames", "minProperties",
     "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "const", "enum")
)  # fmt: skip
_RAW_GAPS = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "$ref"))
_RAW_KEYWORDS = _RAW_GAPS | {"pattern", "minLength", "maxLength", "format"}
_PLAIN_TYPES = {"integer", "number", "boolean", "null"}
"""Types whose JSON holds no marks."""
_ROOT = "whole-schema"
_MAX_BRANCHES = 64
_MAX_VARIANTS = 32
MAX_GRAMMAR_BYTES = 1_000_000
"""As engine.grammar.source has it."""


def tagged_rule(rules: Rules, style: TaggedArguments, schema: Schema, *, lenient: bool = False) -> str:
    """A rule for one element per parameter, in the schema's order, required ones mandatory; "" for none."""
    asked, schema = schema, _resolve(schema)
    properties = _properties(schema)
    if style.unpacking and (_object_gaps(schema, properties) or not all(map(str.isidentifier, properties))):
        return f"{lark_literal(style.unpacking)} {json_rule(rules, asked, flexible=False, lenient=lenient)}"
    variants = _variants(schema)
    if len(variants) > 1:
        bodies = [tagged_rule(rules, style, variant, lenient=lenient) for variant in variants]
        return rules.add("variants", " | ".join(dict.fromkeys(body or '""' for body in bodies)))
    (schema,) = variants
    properties = _properties(schema)
    if not properties:
        others = schema.get("additionalProperties", True)
        return _free_parameters(rules, style, others, schema, lenient) if others is not False else ""
    required = frozenset(schema.get("required") or ())
    whole = _Whole(schema)
    elements = [_parameter(rules, style, name, whole.part(sub), lenient) for name, sub in properties.items()]
    return _sequence(rules, elements, [name in required for name in properties], style.between)


def tagged_gaps(style: TaggedArguments, schema: Schema) -> Iterator[str]:
    """The pointers of keywords and keys that parameters written one by one cannot obey, though JSON could."""
    if style.unpacking:
        return
    variants = _variants(_resolve(schema))
    found = (gap for variant in variants for gap in _gaps(style, variant))
    yield from dict.fromkeys(found)


def _gaps(style: TaggedArguments, schema: Schema) -> Iterator[str]:
    properties = _properties(schema)
    for gap in _object_gaps(schema, properties):
        yield f"/{gap}"
    whole = _Whole(schema)
    for name, sub in properties.items():
        place = f"/properties/{escaped(name)}"
        if not style.spells(name):
            yield place
        elif not style.quoted:
            gaps = (_raw_gap(style, branch) for branch in _branches(whole.part(sub)))
            yield from (f"{place}/{gap}" for gap in dict.fromkeys(filter(None, gaps)))


def _variants(schema: Schema) -> list[Schema]:
    """Objects without an ``anyOf`` beside their properties, one of which the arguments are, and where one property at
    least is asked for, one for each that may be the first. Just the schema where there are too many, or where a
    property is a string in one of them and not in another: its text would not say which."""
    branches = schema.get("anyOf")
    if not isinstance(branches, list):
        return _of_properties(schema)
    definitions = _definitions(schema)
    rest = {key: value for key, value in schema.items() if key != "anyOf" and key not in definitions}
    found: list[Schema] = []
    for branch in branches:
        whole = _resolve({**definitions, **branch}) if isinstance(branch, Mapping) else None
        together = None if whole is None else combined(rest, {k: v for k, v in whole.items() if k not in definitions})
        if together is None or len(found) > _MAX_VARIANTS:
            return [schema]
        found += _of_properties({**together, **definitions})
    raw: dict[str, bool] = {}
    for variant in found:
        for name, sub in _properties(variant).items():
            is_raw = _is_raw(_types(_Whole(variant).part(sub)))
            if raw.setdefault(name, is_raw) != is_raw:
                return [schema]
    return found


def _of_properties(schema: Schema) -> list[Schema]:
    least, required = schema.get("minProperties", 0), list(schema.get("required") or ())
    properties = _properties(schema)
    optional = [name for name in properties if name not in required]
    if least != len(required) + 1 or not optional or len(optional) > _MAX_VARIANTS:
        return [schema]
    rest = {key: value for key, value in schema.items() if key != "minProperties"}
    return [
        {
            **rest,
            "properties": {name: sub for name, sub in properties.items() if name not in optional[:index]},
            "required": [*required, name],
        }
        for index, name in enumerate(optional)
    ]


def _object_gaps(schema: Schema, properties: Schema) -> list[str]:
    """Keywords about the object as a whole that its parameters, one by one, know nothing of."""
    most = len(properties) or math.inf
    obeyed = {"minProperties": len(schema.get("required") or ()) >= schema.get("minProperties", 0)}
    obeyed["maxProperties"] = schema.get("maxProperties", math.inf) >= most
    return [key for key in schema if key in _WHOLE_OBJECT and not obeyed.get(key)]


def _raw_gap(style: TaggedArguments, schema: Schema) -> str | None:
    if not _is_raw(_types(schema)):
        return None
    if (listed := literals(schema)) and not style.section and not writable(style, listed):
        return "const" if "const" in schema else "enum"
    found = next((key for key in schema if key in _RAW_GAPS), None)
    return found or ("pattern" if inner_anchor(schema.get("pattern")) else None)


def _properties(schema: Schema) -> dict[str, Any]:
    """The properties listed, and those that are required without being listed."""
    listed = schema.get("properties")
    properties = dict(listed) if isinstance(listed, Mapping) else {}
    for name in schema.get("required") or ():
        properties.setdefault(name, schema.get("additionalProperties", True))
    return properties


def _free_parameters(rules: Rules, style: TaggedArguments, value: Any, root: Schema, lenient: bool) -> str:
    """Any number of parameters of any name, for a schema that lists none and forbids none."""
    rules.terminal("FREE_KEY", r"/[A-Za-z_][A-Za-z0-9_]{0,63}/")
    schema = {"type": "string"} if not isinstance(value, Mapping) or not value else _Whole(root).part(value)
    element = _parameter(rules, style, None, schema, lenient)
    between = lark_literal(style.between) + " " if style.between else ""
    return f"({element} ({between}{element})*)?"


def _sequence(rules: Rules, elements: Sequence[str], required: Sequence[bool], between: str) -> str:
    """Elements in order, optional ones left out freely, ``between`` only between two that are there."""
    if not between:
        return " ".join(element if must else f"{element}?" for element, must in zip(elements, required, strict=True))
    rest = first = ""
    for element, must in reversed(list(zip(elements, required, strict=True))):
        follow = f"{element} {rest}".strip()
        first = rules.add("first", follow if must else f"{follow} | {first}" if first else f"({follow})?")
        joined = f"{lark_literal(between)} {follow}"
        rest = rules.add("rest", joined if must else f"{joined} | {rest}" if rest else f"({joined})?")
    return first


class _Whole:
    """A schema whose parts are taken out, with the definitions that they refer to: their references lead where they
    led. Where the definitions, written again for each part, exceed what any grammar may hold, they are left out, so
    that compiling fails."""

    def __init__(self, root: Schema) -> None:
        self._definitions = _definitions(root)
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


def _resolve(schema: Schema) -> Schema:
    """Follow a local $ref once or more; what stands beside it stays. Cycles end the walk."""
    definitions = _definitions(schema)
    for _ in range(16):
        reference = schema.get("$ref")
        target = follow(reference, schema) if isinstance(reference, str) else None
        if not isinstance(target, Mapping) or target is schema:
            break
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**target, **beside, **definitions}
    return schema


def _branches(schema: Schema) -> list[Schema]:
    """The alternatives that a value has; one that is any string takes in all others, whose texts it is read as.
    Just the schema where they are too many."""
    found: list[Schema] = []
    todo = [schema]
    for _ in range(_MAX_BRANCHES):
        if not todo:
            break
        part = _resolve(todo.pop())
        key = next((key for key in ("anyOf", "oneOf") if part.get(key)), None)
        if key is None or literals(part):
            found += _by_type(part)
            continue
        beside = {name: value for name, value in part.items() if name != key}
        branches = [branch for branch in part[key] if isinstance(branch, Mapping)]
        todo += [{**beside, **_resolve({**_definitions(part), **branch})} for branch in reversed(branches)]
    if todo:
        return [_resolve(schema)]
    free = [branch for branch in found if _is_free_string(branch)]
    return free[:1] or found or [schema]


def _by_type(schema: Schema) -> list[Schema]:
    """A string and something else: two alternatives, if not every string is allowed."""
    types = schema.get("type")
    if not isinstance(types, list) or "string" not in types or len(types) < 2 or literals(schema):
        return [schema]
    string = {**schema, "type": "string"}
    return [string] if _is_free_string(string) else [string, {**schema, "type": [t for t in types if t != "string"]}]


def _definitions(schema: Schema) -> dict[str, Any]:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _is_raw(types: set[str]) -> bool:
    return not types or "string" in types


def _is_free_string(schema: Schema) -> bool:
    return _is_raw(_types(schema)) and not literals(schema) and not _RAW_KEYWORDS & schema.keys()


def _types(schema: Schema) -> set[str]:
    """JSON types that a schema allows, as far as it says; empty where it says nothing. A string too where it would
    take long to tell."""
    found: set[str] = set()
    todo = [schema]
    for _ in range(_MAX_BRANCHES):
        if not todo:
            return found
        part = _resolve(todo.pop())
        types = part.get("type")
        own = {types} if isinstance(types, str) else set(types or ())
        found |= own or {IMPLIED[key] for key in part if key in IMPLIED}
        found |= {"string" if isinstance(value, str) else "other" for value in literals(part)}
        for key in ("anyOf", "oneOf", "allOf"):
            todo += [{**_definitions(part), **one} for one in part.get(key) or () if isinstance(one, Mapping)]
    return found | {"string"} if todo else found


def _parameter(rules: Rules, style: TaggedArguments, name: str | None, schema: Schema, lenient: bool) -> str:
    """One parameter; ``name`` None: of any name."""
    branches = [schema] if style.quoted else _branches(schema)
    if not style.says_type and any(
        _is_raw(_types(branch)) for branch in branches
    ):  # what may be a string is read as one, if it is not another than those that are listed
        listed = all(literals(branch) for branch in branches if _is_raw(_types(branch)))
        branches = [b for b in branches if listed or _is_raw(_types(b)) or _types(b) == {"null"}]
    bodies = [_written(rules, style, name, branch, lenient) for branch in branches]
    return rules.add("parameter", " | ".join(dict.fromkeys(bodies)))


def _written(rules: Rules, style: TaggedArguments, name: str | None, schema: Schema, lenient: bool) -> str:
    raw = _is_raw(_types(schema))
    filled = _fill(style.parameter, "true" if raw else "false", "string" if raw else _attribute(_types(schema)))
    head, tail = filled.split("{value}", 1)
    before, after = head.split("{key}", 1)
    value_opens = style.quote if raw and not style.quoted else ""
    if name is None:
        parts = [lark_literal(before) if before else "", "FREE_KEY", lark_literal(after + value_opens)]
    else:
        parts = [lark_literal(before + style.written(name) + after + value_opens)]
    if style.quoted or not raw:
        opening, closing = style.section or ("", "")
        if not opening or not _types(schema) - _PLAIN_TYPES:
            opening = closing = ""
        value = json_rule(rules, schema, flexible=False, lenient=lenient)
        parts += [
            lark_literal(opening) if opening else "",
            value,
            lark_literal(closing + tail) if closing + tail else "",
        ]
    else:
        parts.append(_raw_or_section(rules, _resolve(schema), style, tail))
    return " ".join(part for part in parts if part)


def _raw_or_section(rules: Rules, schema: Schema, style: TaggedArguments, tail: str) -> str:
    plain = raw_value(rules, schema, style, tail)
    if style.section is None:
        return plain
    opening, closing = style.section
    section = f"{lark_literal(opening)} {raw_value(rules, schema, style.in_section, closing + tail)}"
    return f"({plain} | {section})" if plain else section


def _fill(template: str, string: str, json_type: str) -> str:
    return template.replace("{string}", string).replace("{type}", json_type)


def _attribute(types: set[str]) -> str:
    named = [name for name in ("integer", "number", "boolean", "object", "array", "null") if name in types]
    return "number" if named[:1] == ["integer"] else (named or ["object"])[0]
