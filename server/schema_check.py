"""Admission of JSON Schemas from clients: sizes, references and the meta-schema, before any compiler sees them.

Limits come first and walk without recursion. ``$ref`` may only point into the same document (``#`` or ``#/...``)
and must resolve; nothing is ever fetched. Patterns are bounded in length and nesting and must compile. A schema that
names no draft may be of an older one: OpenAPI 3.0 writes ``exclusiveMinimum: true``, draft 7 a list of ``items``.
Full compilation to a grammar happens later, in the engine's killable check process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any
from urllib.parse import quote

import jsonschema_rs
import orjson

from server import limits
from server.errors import BadRequest, invalid
from toolcall.schema_references import escaped, follow
from toolcall.schema_values import ecma

_DRAFTS = re.compile(r"https?://json-schema\.org/(draft-0[467]|draft/2019-09|draft/2020-12)/schema#?")
_OLDER_DRAFTS = ("http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#")
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples", "example"})
"""Keywords whose values are data, not schemas."""
NAME_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
"""Keywords whose keys are names, not keywords."""


class SchemaError(ValueError):
    """What is wrong, and where: a JSON pointer into the schema."""

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(f"{message} (at {pointer})" if pointer else message)


def check_schema(schema: Any, param: str, *, code: str | None = None, meta: bool = True) -> None:
    """Raise BadRequest for ``param`` unless ``schema`` is an object within the limits; with ``meta``, also unless it
    is a valid schema with resolvable references and compilable patterns."""
    if not isinstance(schema, dict):
        raise invalid(param, "a JSON Schema object is expected", code=code)
    try:
        _check_size(schema)
        _check_walk(schema, meta)
        if meta:
            _check_meta(schema)
    except SchemaError as exc:
        raise BadRequest(f"Invalid schema for '{param}': {exc}.", param=param, code=code) from None


def _check_size(schema: Mapping[str, Any]) -> None:
    try:
        size = len(orjson.dumps(schema))
    except (TypeError, RecursionError):
        raise SchemaError("it is nested too deeply") from None
    if size > limits.MAX_SCHEMA_BYTES:
        raise SchemaError(f"it is larger than {limits.MAX_SCHEMA_BYTES} bytes")


def walk(schema: Any) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every subschema object with its JSON pointer and JSON nesting depth, breadth first."""
    level: list[tuple[str, Any, bool]] = [("", schema, True)]
    depth = 0
    while level:
        following: list[tuple[str, Any, bool]] = []
        for pointer, node, is_schema in level:
            if isinstance(node, dict):
                if is_schema:
                    yield pointer, node, depth
                for key, value in node.items():
                    if isinstance(value, (dict, list)) and not (is_schema and key in DATA_KEYWORDS):
                        named = not (is_schema and key in NAME_MAPS)
                        following.append((f"{pointer}/{escaped(key)}", value, named))
            elif isinstance(node, list):
                following += [(f"{pointer}/{i}", item, is_schema) for i, item in enumerate(node)]
        level = following
        depth += 1


def _check_walk(schema: dict[str, Any], meta: bool) -> None:
    for count, (pointer, node, depth) in enumerate(walk(schema)):
        if depth > limits.MAX_SCHEMA_DEPTH:
            raise SchemaError(f"it is nested deeper than {limits.MAX_SCHEMA_DEPTH} levels")
        if count > limits.MAX_SCHEMA_NODES:
            raise SchemaError(f"it holds more than {limits.MAX_SCHEMA_NODES} subschemas")
        enum = node.get("enum")
        if isinstance(enum, list) and len(enum) > limits.MAX_ENUM_VALUES:
            raise SchemaError(f"an enum holds more than {limits.MAX_ENUM_VALUES} values", pointer)
        for keyword in ("anyOf", "oneOf", "allOf"):
            branches = node.get(keyword)
            if isinstance(branches, list) and len(branches) > limits.MAX_UNION_BRANCHES:
                raise SchemaError(f"{keyword} holds more than {limits.MAX_UNION_BRANCHES} schemas", pointer)
        if meta:
            _check_references(schema, pointer, node)
            _check_pattern(node.get("pattern"), pointer)


def _check_references(root: dict[str, Any], pointer: str, node: Mapping[str, Any]) -> None:
    for keyword in REFERENCES:
        target = node.get(keyword)
        if target is None:
            continue
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            raise SchemaError(f"{keyword} may only point into the same schema ('#/...')", pointer)
        if not isinstance(follow(target, root), dict | bool):
            raise SchemaError(f"{keyword} points to nothing", pointer)


def _check_pattern(pattern: Any, pointer: str) -> None:
    if not isinstance(pattern, str):
        return
    if len(pattern) > limits.MAX_PATTERN_CHARS:
        raise SchemaError(f"a pattern is longer than {limits.MAX_PATTERN_CHARS} characters", pointer)
    if nesting(pattern) > limits.MAX_PATTERN_NESTING:
        raise SchemaError(f"a pattern nests more than {limits.MAX_PATTERN_NESTING} groups", pointer)


def nesting(pattern: str) -> int:
    """Deepest nesting of parentheses, escapes respected; an upper bound where classes hold parentheses."""
    depth = deepest = 0
    escaped = False
    for char in pattern:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif char == ")":
            depth -= 1
    return deepest


def _check_meta(schema: dict[str, Any]) -> None:
    """Meta-schema, then a full build, which also compiles patterns. ``$schema`` is honoured for known drafts only,
    ``$id`` not at all: references are local by rule."""
    local = {key: value for key, value in schema.items() if key != "$id"}
    declared = local.get("$schema")
    if declared is not None and not (isinstance(declared, str) and _DRAFTS.fullmatch(declared)):
        local.pop("$schema")
    try:
        _of_its_draft(local)
        jsonschema_rs.validator_for(
            _readable(local),
            offline=True,
            pattern_options=jsonschema_rs.FancyRegexOptions(size_limit=1 << 22, dfa_size_limit=1 << 22),
        )
    except jsonschema_rs.ValidationError as exc:
        pointer = "/".join(str(part)[:80] for part in ("", *exc.instance_path))
        raise SchemaError(_first_line(exc), pointer) from None
    except (jsonschema_rs.ReferencingError, ValueError) as exc:
        raise SchemaError(_first_line(exc)) from None


def _of_its_draft(schema: dict[str, Any]) -> None:
    """Check the meta-schema; a schema that names none gets the first that it is valid under."""
    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError:
        if "$schema" in schema:
            raise
        for draft in _OLDER_DRAFTS:
            if jsonschema_rs.meta.is_valid({"$schema": draft, **schema}):
                schema["$schema"] = draft
                return
        raise


def _readable(schema: Any) -> dict[str, Any]:
    """A copy in which references are percent-encoded and patterns are in Rust's words, as the validator reads them.
    Without ``$id``: pointers lead into the document, not into a part that has one."""
    copy = deepcopy(schema)
    for _, node, _ in walk(copy):
        node.pop("$id", None)
        for keyword in REFERENCES:
            if isinstance(target := node.get(keyword), str):
                node[keyword] = quote(target, safe="#/%~!$&'()*+,;=:@?")
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = ecma(pattern)
    found: dict[str, Any] = copy
    return found


def _first_line(exc: Exception) -> str:
    message = str(exc).strip().splitlines()
    return (message[0] if message else "it is not a valid JSON Schema").rstrip(".")[:300]


def check_strict(schema: Mapping[str, Any], param: str) -> None:
    """OpenAI's rules for ``strict``: every object lists all its properties as required and closes itself."""
    for pointer, node, _ in walk(schema):
        properties = node.get("properties")
        if node.get("type") != "object" and not isinstance(properties, dict):
            continue
        where = pointer or "/"
        if node.get("additionalProperties") is not False:
            raise _strict_error(param, f"'additionalProperties' must be false (at {where})")
        required = node.get("required", [])
        missing = [name for name in properties or {} if name not in required]
        if missing:
            raise _strict_error(
                param, f"'required' must list every property; {missing[0][:80]!r} is missing (at {where})"
            )


def _strict_error(param: str, reason: str) -> BadRequest:
    return BadRequest(
        f"Invalid schema for strict function calling: {reason}.", param=param, code="invalid_function_parameters"
    )
