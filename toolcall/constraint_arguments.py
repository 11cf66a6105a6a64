"""Lark rules for the arguments of a call: as one JSON object, or as one element per parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolcall.constraint_styles import TaggedArguments

Schema = Mapping[str, Any]

_FIXED = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_FLEXIBLE = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,64}"}
_COMPOSING = frozenset(
    ("allOf", "anyOf", "oneOf", "not", "if", "$ref", "patternProperties", "unevaluatedProperties", "dependentSchemas")
)
_JSON_MARKS = re.compile(r"(\s+|[{}:,])")
_LINE_BREAKS = re.compile(r"(\s*\n\s*)")
TERMINALS = "WS: /[ \\t\\r\\n]{1,64}/\nLAYOUT: /[ \\n]{1,4}/\nINDEX: /[0-9]{1,3}/\n"


class Rules:
    """Collects named rules; the same body is written once."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str], str] = {}
        self._terminals: dict[str, str] = {}
        self._numbers: dict[tuple[object, ...], int] = {}

    def add(self, kind: str, body: str) -> str:
        """Name of a rule with this body. ``kind`` is the stem of its name, with options in brackets."""
        stem, _, options = kind.partition("[")
        key = (options, body)
        if key not in self._names:
            self._names[key] = f"{stem}_{len(self._names)}"
        return self._names[key]

    def terminal(self, name: str, body: str) -> None:
        self._terminals[name] = body

    def number(self, *key: object) -> int:
        """A number for this key, the same each time."""
        return self._numbers.setdefault(key, len(self._numbers))

    def joined(self, *parts: str) -> str:
        """A terminal that is these, one after another."""
        name = f"JOINED_{self.number(parts)}"
        self.terminal(name, " ".join(parts))
        return name

    def text(self, start: str) -> str:
        """The whole grammar."""
        lines = [f"start: {start}"]
        for (options, body), name in self._names.items():
            lines.append(f"{name}{'[' + options if options else ''}: {body}")
        lines += [f"{name}: {body}" for name, body in self._terminals.items()]
        return "\n".join(lines) + "\n" + TERMINALS


def lark_text(text: str, *, flexible: bool, is_json: bool = False) -> str:
    """Lark for literal text. Where flexible, line breaks in it are optional white space; where it is JSON too,
    white space is allowed around every mark."""
    if not text:
        return ""
    if not flexible:
        return _quoted(text)
    parts: list[str] = []
    for piece in (_JSON_MARKS if is_json else _LINE_BREAKS).split(text):
        if not piece:
            continue
        if not piece.strip():
            parts.append("WS?")
        elif is_json and piece in "{}:,":
            parts += ["WS?", _quoted(piece), "WS?"]
        else:
            parts.append(_quoted(piece))
    return " ".join(part for at, part in enumerate(parts) if part != "WS?" or at == 0 or parts[at - 1] != "WS?")


def lark_json(text: str) -> str:
    """Lark for literal JSON, mark by mark: the lexer takes the longest lexeme, so one for several marks would leave
    no way to another object that begins alike."""
    return " ".join(_quoted(piece) for piece in re.split(r"([{}]|: |, )", text) if piece)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def lark_regex(pattern: str) -> str:
    """A Lark regex literal: unescaped slashes are escaped."""
    return (
        "/" + re.sub(r"(\\.)|/", lambda found: found[1] or "\\/", pattern, flags=re.DOTALL).replace("\n", "\\n") + "/"
    )


def close_objects(schema: Schema) -> Schema:
    """The schema with objects that list properties closed to others, which only narrows what it allows."""
    closed = {key: _closed_value(key, value) for key, value in schema.items()}
    if "properties" in closed and "additionalProperties" not in closed and not _COMPOSING & closed.keys():
        closed["additionalProperties"] = False
    return closed


def _closed_value(key: str, value: Any) -> Any:
    if key in ("properties", "$defs", "definitions") and isinstance(value, Mapping):
        return {name: close_objects(sub) if isinstance(sub, Mapping) else sub for name, sub in value.items()}
    if key == "items" and isinstance(value, Mapping):
        return close_objects(value)
    return value


def json_rule(rules: Rules, schema: Schema, *, flexible: bool, lenient: bool = False) -> str:
    """A rule for a JSON value of this schema. A client's own x-guidance is never passed on."""
    options: dict[str, Any] = dict(_FLEXIBLE if flexible else _FIXED)
    if lenient:
        options["lenient"] = True
    body = {key: value for key, value in schema.items() if key != "x-guidance"}
    return rules.add("json", "%json " + json.dumps({"x-guidance": options, **body}, ensure_ascii=False))


def tagged_rule(rules: Rules, style: TaggedArguments, schema: Schema, *, lenient: bool = False) -> str:
    """A rule for one element per parameter, in the schema's order, required ones mandatory; "" for none."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping) or not properties:
        return _free_parameters(rules, style) if schema.get("additionalProperties", True) is not False else ""
    required = frozenset(schema.get("required") or ())
    elements = [_parameter(rules, style, name, _with_defs(sub, schema), lenient) for name, sub in properties.items()]
    return _sequence(rules, elements, [name in required for name in properties], style.between)


def _free_parameters(rules: Rules, style: TaggedArguments) -> str:
    """Any number of string parameters of any name, for a schema that lists none and forbids none."""
    rules.terminal("FREE_KEY", r"/[A-Za-z_][A-Za-z0-9_\-]{0,63}/")
    before, after = style.parameter.split("{key}", 1)
    head, tail = _fill(after, "true", "string").split("{value}", 1)
    parts = [_quoted(before) if before else "", "FREE_KEY", _quoted(head + style.quote)]
    parts.append(json_rule(rules, {"type": "string"}, flexible=False) if style.quoted else _raw(rules, {}, style, tail))
    element = rules.add("free", " ".join(part for part in parts if part))
    between = _quoted(style.between) + " " if style.between else ""
    return f"({element} ({between}{element})*)?"


def _sequence(rules: Rules, elements: Sequence[str], required: Sequence[bool], between: str) -> str:
    """Elements in order, optional ones left out freely, ``between`` only between two that are there."""
    if not between:
        return " ".join(element if must else f"{element}?" for element, must in zip(elements, required, strict=True))
    rest = first = ""
    for element, must in reversed(list(zip(elements, required, strict=True))):
        follow = f"{element} {rest}".strip()
        first = rules.add("first", follow if must else f"{follow} | {first}" if first else f"({follow})?")
        joined = f"{_quoted(between)} {follow}"
        rest = rules.add("rest", joined if must else f"{joined} | {rest}" if rest else f"({joined})?")
    return first


def _with_defs(schema: Any, root: Schema) -> Schema:
    if not isinstance(schema, Mapping):
        return {}
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**definitions, **schema}


def _resolve(schema: Schema) -> Schema:
    """Follow a local $ref to a definition once or more; cycles end the walk."""
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    for _ in range(16):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        group, _, name = reference.removeprefix("#/").partition("/")
        target = definitions.get(group, {}).get(name)
        if not isinstance(target, Mapping):
            break
        schema = {**definitions, **target}
    return schema


def _types(schema: Schema) -> set[str]:
    """JSON types that a schema allows, as far as it says; empty where it says nothing."""
    schema = _resolve(schema)
    types = schema.get("type")
    found = {types} if isinstance(types, str) else set(types or ())
    for value in _literals(schema):
        found.add("string" if isinstance(value, str) else "other")
    for key in ("anyOf", "oneOf", "allOf"):
        for branch in schema.get(key) or ():
            if isinstance(branch, Mapping):
                found |= _types(_with_defs(branch, schema))
    return found


def _literals(schema: Schema) -> list[Any]:
    if "const" in schema:
        return [schema["const"]]
    return list(schema.get("enum") or ())


def _parameter(rules: Rules, style: TaggedArguments, name: str, schema: Schema, lenient: bool) -> str:
    types = _types(schema)
    raw = not types or "string" in types
    template = _fill(style.parameter, "true" if raw else "false", "string" if raw else _attribute(types))
    head, tail = template.replace("{key}", name).split("{value}", 1)
    if style.quoted or not raw:
        value = json_rule(rules, schema, flexible=False, lenient=lenient)
        parts = [_quoted(head), value, _quoted(tail) if tail else ""]
    else:
        parts = [_quoted(head + style.quote), _raw(rules, _resolve(schema), style, tail)]
    return rules.add("parameter", " ".join(part for part in parts if part))


def _fill(template: str, string: str, json_type: str) -> str:
    return template.replace("{string}", string).replace("{type}", json_type)


def _attribute(types: set[str]) -> str:
    named = [name for name in ("integer", "number", "boolean", "object", "array", "null") if name in types]
    return "number" if named[:1] == ["integer"] else (named or ["object"])[0]


def _raw(rules: Rules, schema: Schema, style: TaggedArguments, tail: str) -> str:
    """A raw string value with the text that ends it, which the value itself cannot hold."""
    literals = _literals(schema)
    closing = _quoted(style.quote + tail)
    if literals:
        options = " | ".join(_quoted(item) for item in literals if isinstance(item, str))
        return f"({options}) {closing}"
    forbidden = "|".join(re.escape(text) for text in style.forbidden)
    name = f"RAW_{rules.number(style.forbidden, _raw_pattern(schema))}"
    rules.terminal(name, f"{lark_regex(_raw_pattern(schema))} & ~{lark_regex(f'(?s:.*)({forbidden})(?s:.*)')}")
    return rules.add(f"raw[suffix={closing}]", name)


def _raw_pattern(schema: Schema) -> str:
    pattern = schema.get("pattern")
    if isinstance(pattern, str):
        head = "" if pattern.startswith("^") else "(?s:.*)"
        tail = "" if pattern.endswith("$") else "(?s:.*)"
        return f"{head}(?:{pattern.removeprefix('^').removesuffix('$')}){tail}"
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    if high is None and not low:
        return "(?s:.*)"
    return f"(?s:.{{{low},{'' if high is None else high}}})"
