"""Lark rules for the arguments of a call as one element per parameter, and what those cannot enforce."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolcall.constraint_json import json_rule
from toolcall.constraint_raw import inner_anchor, raw_value, writable
from toolcall.constraint_styles import TaggedArguments
from toolcall.lark import Rules, Schema, lark_literal, sequence
from toolcall.schema import IMPLIED, ParamType, Tool
from toolcall.schema_excluding import only_other_names
from toolcall.schema_merging import combined
from toolcall.schema_parts import WholeSchema, definitions, resolved
from toolcall.schema_references import escaped
from toolcall.schema_values import literals

_WHOLE_OBJECT = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "propertyNames", "minProperties",
     "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "const", "enum")
)  # fmt: skip
_RAW_GAPS = frozenset(("allOf", "anyOf", "oneOf", "not", "if", "$ref"))
_RAW_KEYWORDS = _RAW_GAPS | {"pattern", "minLength", "maxLength", "format"}
_PLAIN_TYPES = {"integer", "number", "boolean", "null"}
"""Types whose JSON holds no marks."""
_MAX_BRANCHES = 64
_MAX_VARIANTS = 32


def tagged_rule(rules: Rules, style: TaggedArguments, schema: Schema, *, lenient: bool = False) -> str:
    """A rule for one element per parameter, in the schema's order, required ones mandatory; "" for none."""
    asked, schema = schema, resolved(schema)
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
    whole = WholeSchema(schema)
    elements = [_parameter(rules, style, name, whole.part(sub), lenient) for name, sub in properties.items()]
    between = lark_literal(style.between) if style.between else ""
    return sequence(rules, elements, [name in required for name in properties], between)


def tagged_gaps(style: TaggedArguments, schema: Schema, declared: Schema) -> Iterator[str]:
    """The pointers of keywords and keys that parameters written one by one cannot obey, though JSON could.
    ``declared``: the schema by which the values are read."""
    if style.unpacking:
        return
    variants = _variants(resolved(schema))
    tool = Tool("", declared)
    found = (gap for variant in variants for gap in _gaps(style, variant, tool))
    yield from dict.fromkeys(found)


def _gaps(style: TaggedArguments, schema: Schema, declared: Tool) -> Iterator[str]:
    properties = _properties(schema)
    for gap in _object_gaps(schema, properties):
        yield f"/{gap}"
    whole = WholeSchema(schema)
    for name, sub in properties.items():
        place = f"/properties/{escaped(name)}"
        if not style.spells(name):
            yield place
        elif _misread(style, declared.type_of(name), _branches(whole.part(sub))):
            yield f"{place}/anyOf"
        elif not style.quoted:
            gaps = (_raw_gap(style, branch) for branch in _branches(whole.part(sub)))
            yield from (f"{place}/{gap}" for gap in dict.fromkeys(filter(None, gaps)))


def _misread(style: TaggedArguments, kind: ParamType, branches: Sequence[Schema]) -> bool:
    """Whether a value that is no string would be read as one, since any text may be one by the declared schema."""
    if style.says_type or "string" not in kind.kinds or kind.texts is not None:
        return False
    free = any(_is_raw(_types(branch)) and not literals(branch) for branch in branches)
    if free and "null" in kind.kinds and not any("null" in _types(branch) or not _types(branch) for branch in branches):
        return True
    others = [branch for branch in branches if not _is_raw(_types(branch)) and _types(branch) != {"null"}]
    return bool(others) and all(literals(branch) for branch in branches if _is_raw(_types(branch)))


def _variants(schema: Schema) -> list[Schema]:
    """Objects without an ``anyOf`` beside their properties, one of which the arguments are, and where one property at
    least is asked for, one for each that may be the first. Just the schema where there are too many, or where a
    property is a string in one of them and not in another: its text would not say which."""
    branches = schema.get("anyOf")
    if not isinstance(branches, list):
        return _of_properties(schema)
    defined = definitions(schema)
    rest = {key: value for key, value in schema.items() if key != "anyOf" and key not in defined}
    found: list[Schema] = []
    for branch in branches:
        whole = resolved({**defined, **branch}) if isinstance(branch, Mapping) else None
        together = None if whole is None else combined(rest, {k: v for k, v in whole.items() if k not in defined})
        if together is None or len(found) > _MAX_VARIANTS:
            return [schema]
        found += _of_properties({**together, **defined})
    raw: dict[str, bool] = {}
    for variant in found:
        for name, sub in _properties(variant).items():
            is_raw = _is_raw(_types(WholeSchema(variant).part(sub)))
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
    obeyed["patternProperties"] = only_other_names(schema)
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
    schema = {"type": "string"} if not isinstance(value, Mapping) or not value else WholeSchema(root).part(value)
    element = _parameter(rules, style, None, schema, lenient)
    between = lark_literal(style.between) + " " if style.between else ""
    return f"({element} ({between}{element})*)?"


def _branches(schema: Schema) -> list[Schema]:
    """The alternatives that a value has; one that is any string takes in all others, whose texts it is read as.
    Just the schema where they are too many."""
    found: list[Schema] = []
    todo = [schema]
    for _ in range(_MAX_BRANCHES):
        if not todo:
            break
        part = resolved(todo.pop())
        key = next((key for key in ("anyOf", "oneOf") if part.get(key)), None)
        if key is None or literals(part):
            found += _by_type(part)
            continue
        beside = {name: value for name, value in part.items() if name != key}
        branches = [branch for branch in part[key] if isinstance(branch, Mapping)]
        todo += [{**beside, **resolved({**definitions(part), **branch})} for branch in reversed(branches)]
    if todo:
        return [resolved(schema)]
    free = [branch for branch in found if _is_free_string(branch)]
    return free[:1] or found or [schema]


def _by_type(schema: Schema) -> list[Schema]:
    """A string and something else: two alternatives, if not every string is allowed."""
    types = schema.get("type")
    if not isinstance(types, list) or "string" not in types or len(types) < 2 or literals(schema):
        return [schema]
    string = {**schema, "type": "string"}
    return [string] if _is_free_string(string) else [string, {**schema, "type": [t for t in types if t != "string"]}]


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
        part = resolved(todo.pop())
        types = part.get("type")
        own = {types} if isinstance(types, str) else set(types or ())
        found |= own or {IMPLIED[key] for key in part if key in IMPLIED}
        found |= {"string" if isinstance(value, str) else "other" for value in literals(part)}
        for key in ("anyOf", "oneOf", "allOf"):
            todo += [{**definitions(part), **one} for one in part.get(key) or () if isinstance(one, Mapping)]
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
        parts.append(_raw_or_section(rules, resolved(schema), style, tail))
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
