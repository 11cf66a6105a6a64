"""Grammars, regexes and schemas that are meant to hurt whoever compiles or follows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Bomb = tuple[str, dict[str, Any]]
"""A name, and the request fields: ``structured_outputs`` or ``response_format``."""

REGEXES: Mapping[str, Callable[[int], str]] = {
    "nested plus": lambda n: "(" * (n % 60) + "a" + "+)" * (n % 60),
    "nested star of alternatives": lambda n: "(" * (n % 50) + "a|aa" + ")*" * (n % 50),
    "counted": lambda n: f"a{{{n * n}}}",
    "counted twice": lambda n: f"(a{{{n}}}b?){{{n}}}",
    "counted thrice": lambda n: f"((x{{1,{n}}}y){{1,{n}}}z){{1,{n}}}",
    "dots around": lambda n: f".{{0,{n * 10}}}x.{{0,{n * 10}}}y",
    "any then back": lambda n: f"(.*a){{{n}}}",
    "optional run": lambda n: "a?" * n + "a" * n,
    "many stars": lambda n: ".*" * n,
    "last but n": lambda n: f".*a.{{{n}}}",
    "unicode class": lambda n: rf"\p{{L}}{{1,{n * 20}}}\d",
    "words": lambda n: "|".join(f"word{index:05}" for index in range(n * 40)),
    "deep groups": lambda n: "(" * n * 20 + "a" + ")" * n * 20,
    "look ahead": lambda n: "(?=a)" * n + "a",
    "back reference": lambda n: r"(a+)" + r"\1" * n,
    "unclosed": lambda n: "(" * n,
    "long": lambda n: "abc" * n * 1000,
    "ranges": lambda n: "[a-zA-Z0-9_.+-]+@" * n,
}
EBNFS: Mapping[str, Callable[[int], str]] = {
    "left recursion": lambda n: "root ::= " + "".join(f"root r{i} | " for i in range(n)) + '"a"\n' + _rules(n),
    "ambiguous": lambda n: 'root ::= root root | "a" | ""',
    "ambiguous many": lambda n: "root ::= " + "root " * max(n, 2) + '| "a" | ""',
    "itself": lambda n: "root ::= root",
    "mutual": lambda n: "root ::= r0\n" + "\n".join(f'r{i} ::= r{(i + 1) % n} "x" | r{(i + 2) % n}' for i in range(n)),
    "nullable chain": lambda n: "root ::= " + " ".join(f"n{i}" for i in range(n)) + "\n" + _nullable(n),
    "doubling": lambda n: (
        "root ::= d0\n" + "\n".join(f"d{i} ::= d{i + 1} d{i + 1}" for i in range(n)) + f'\nd{n} ::= "a"'
    ),
    "missing rule": lambda n: "root ::= " + " ".join(f"missing{i}" for i in range(n)),
    "deep": lambda n: "root ::= " + "(" * n * 5 + '"a"' + ")*" * n * 5,
    "many rules": lambda n: "root ::= r0\n" + _rules(n * 50),
}
SCHEMAS: Mapping[str, Callable[[int], Any]] = {
    "deep object": lambda n: _nest(n * 2, lambda inner: {"type": "object", "properties": {"a": inner}, "required": ["a"]}),
    "deep array": lambda n: _nest(n * 2, lambda inner: {"type": "array", "items": inner, "minItems": 1}),
    "deep anyOf": lambda n: _nest(min(n, 14), lambda inner: {"anyOf": [inner, {"type": "array", "items": inner}]}),
    "wide": lambda n: {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n * 40)}},
    "wide and required": lambda n: {
        "type": "object",
        "properties": {f"p{i}": {"type": "integer"} for i in range(n * 10)},
        "required": [f"p{i}" for i in range(n * 10)],
    },
    "enum": lambda n: {"enum": [f"value {i}" for i in range(n * 200)]},
    "enum of long": lambda n: {"enum": ["x" * n * 100 + str(i) for i in range(n)]},
    "itself": lambda n: {"$ref": "#"},
    "cycle": lambda n: {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % n}"} for i in range(n)}},
    "mutual": lambda n: {
        "$ref": "#/$defs/d0",
        "$defs": {
            f"d{i}": {"anyOf": [{"type": "array", "items": {"$ref": f"#/$defs/d{j}"}} for j in range(n)]} for i in range(n)
        },
    },
    "doubling refs": lambda n: {
        "$ref": "#/$defs/d0",
        "$defs": {
            **{f"d{i}": _pair(f"#/$defs/d{i + 1}") for i in range(n)},
            f"d{n}": {"type": "null"},
        },
    },
    "long string": lambda n: {"type": "string", "minLength": n * 1000, "maxLength": n * 2000},
    "long list": lambda n: {"type": "array", "items": {"type": "integer"}, "minItems": n * 500, "maxItems": n * 1000},
    "lists of lists": lambda n: _nest(4, lambda inner: {"type": "array", "items": inner, "minItems": n, "maxItems": n * 2}),
    "all of": lambda n: {"allOf": [{"type": "object", "properties": {f"p{i}": {"type": "integer"}}} for i in range(n * 4)]},
    "all of patterns": lambda n: {"type": "string", "allOf": [{"pattern": f"a.*b{i}.*c" } for i in range(n)]},
    "union of objects": lambda n: {"anyOf": [_object(f"v{i}", 6) for i in range(n * 5)]},
    "one of": lambda n: {"oneOf": [{"type": "string", "maxLength": i + 1} for i in range(n * 5)]},
    "nothing": lambda n: {"type": "integer", "minimum": n, "maximum": n - 1},
    "nothing inside": lambda n: {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "bounds": lambda n: {"type": "number", "minimum": -(10.0 ** (n * 5 % 300)), "maximum": 10.0 ** (n * 5 % 300)},
    "integers": lambda n: {"type": "integer", "minimum": -(10**n), "maximum": 10**n},
    "multiple": lambda n: {"type": "integer", "multipleOf": n * 7919},
    "tiny multiple": lambda n: {"type": "number", "multipleOf": 10.0**-n},
    "pattern": lambda n: {"type": "string", "pattern": f"^(a|b|ab){{{n},{n * n}}}$"},
    "pattern keys": lambda n: {"type": "object", "patternProperties": {f"^k{i}.*x$": {"type": "integer"} for i in range(n)}},
    "not": lambda n: _nest(n, lambda inner: {"not": inner}),
    "if": lambda n: _nest(n, lambda inner: {"if": inner, "then": inner if n < 8 else {}, "else": {"type": "string"}}),
    "tuple": lambda n: {"type": "array", "prefixItems": [{"type": "string"}] * n * 20, "items": False},
    "description": lambda n: {"type": "object", "description": "x" * n * 15_000},
    "key": lambda n: {"type": "object", "properties": {"k" * n * 1000: {"type": "integer"}}},
    "remote": lambda n: {"$ref": f"http://localhost:{n}/schema.json"},
    "file": lambda n: {"$ref": "file:///etc/passwd"},
    "formats": lambda n: _object_of([{"type": "string", "format": f} for f in ("uri", "email", "uuid", "date-time")] * n),
    "unique": lambda n: {"type": "array", "uniqueItems": True, "items": {"enum": list(range(n))}},
    "guidance": lambda n: {"x-guidance": {"whitespace_pattern": ".*" * n, "lenient": True}, "type": "object"},
}  # fmt: skip
SIZES = (1, 7, 40, 64)
"""From harmless to beyond the limits."""


def bombs() -> list[Bomb]:
    """All families in all sizes; the same order each time."""
    found: list[Bomb] = []
    for size in SIZES:
        for name, regex in REGEXES.items():
            found.append((f"regex, {name}, {size}", {"structured_outputs": {"regex": regex(size)}}))
        for name, ebnf in EBNFS.items():
            found.append((f"ebnf, {name}, {size}", {"structured_outputs": {"grammar": ebnf(size)}}))
        for name, schema in SCHEMAS.items():
            shape = {"name": "x", "schema": schema(size), "strict": size % 2 == 0}
            found.append(
                (f"schema, {name}, {size}", {"response_format": {"type": "json_schema", "json_schema": shape}})
            )
        choices = {"structured_outputs": {"choice": ["x" * size * 10 + str(i) for i in range(size * 60)]}}
        found.append((f"choice, {size}", choices))
    return found


def megabyte() -> Bomb:
    """A schema of 1 MB that is no more than large."""
    properties = {f"property_{i}": {"type": "string", "enum": [f"{i} {j}" for j in range(60)]} for i in range(1500)}
    schema = {"type": "object", "properties": properties}
    assert len(json.dumps(schema)) > 900_000
    return "schema of a megabyte", {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    }


def _nest(depth: int, wrap: Callable[[Any], Any]) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def _pair(reference: str) -> dict[str, Any]:
    return {"type": "array", "prefixItems": [{"$ref": reference}, {"$ref": reference}], "minItems": 2, "items": False}


def _object(tag: str, count: int) -> dict[str, Any]:
    properties = {f"p{i}": {"type": "string"} for i in range(count)} | {"tag": {"const": tag}}
    return {"type": "object", "properties": properties, "required": ["tag"]}


def _object_of(values: list[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": value for i, value in enumerate(values)}}


def _rules(count: int) -> str:
    return "\n".join(f'r{i} ::= "{i}" | r{i + 1}' for i in range(count)) + f'\nr{count} ::= "end"'


def _nullable(count: int) -> str:
    return "\n".join(f'n{i} ::= "a" | "" | n{(i + 1) % count}' for i in range(count))
