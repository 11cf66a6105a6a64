"""What must go from a schema for it to compile: as little as one can find, each loss with its place and its reason."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from engine.grammar.check import TOO_LARGE, TOO_SLOW
from engine.messages import GrammarSpec
from server.schema_check import walk
from toolcall.constraint_json import OF_ITEMS, unheld, value_spec
from toolcall.schema_references import escaped

Schema = Mapping[str, Any]
ErrorOf = Callable[[GrammarSpec], Awaitable[str | None]]
"""The compiler's message for a grammar; None where it compiles."""

MAX_TRIES = 2048
"""Places of a schema that are tried by themselves, in each of at most MAX_LOST rounds; verdicts are remembered."""
MAX_LOST = 64
_UNKNOWN = re.compile(r"Unimplemented keys: (\[.*\])")
_NUMERIC = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_COUNTS = ("minProperties", "maxProperties")
_DEFINITIONS = ("$defs", "definitions")


def exhausts(error: str) -> bool:
    """Whether what a message tells of took all the time or memory that there is."""
    return TOO_SLOW in error or TOO_LARGE in error


def uncounted(schema: Schema) -> list[str]:
    """The pointers of least counts of properties that one name, written again and again, would reach."""
    return [
        f"{at}/minProperties"
        for at, node, _ in walk(schema)
        if isinstance(least := node.get("minProperties"), int)
        and least > len(node.get("required", ())) + 1
        and ("patternProperties" in node or node.get("additionalProperties") is not False)
    ]


async def relaxed(schema: Schema, error: str, error_of: ErrorOf) -> tuple[Schema, dict[str, str], str | None]:
    """(what is left of the schema, pointers of what is not enforced and why, the error that is left)."""
    lost: dict[str, str] = {}
    left: str | None = error
    for _ in range(MAX_LOST):
        if left is None or exhausts(left):
            break
        changed = await _without_unknown(schema, left) or await _without_failing(schema, left, error_of)
        if changed is None:
            break
        schema, found = changed
        lost |= found
        left = await error_of(value_spec(schema))
    return schema, lost, left


async def lost_patterns(schema: Schema, error_of: ErrorOf) -> dict[str, str]:
    """Pointers of the patterns that are beyond the compiler (look-around, references back), and why."""
    found = {}
    for pointer, node, _ in itertools.islice(walk(schema), MAX_TRIES):
        if isinstance(pattern := node.get("pattern"), str) and _is_regex(pattern):
            error = await error_of(value_spec({"type": "string", "pattern": pattern}))
            if error is not None and not exhausts(error):
                found[f"{pointer}/pattern"] = error
    return found


async def _without_unknown(schema: Schema, error: str) -> tuple[Schema, dict[str, str]] | None:
    """Without the keywords or the format that the compiler's message names, wherever they stand."""
    if (named := _UNKNOWN.search(error)) is not None:
        keys = json.loads(named[1])
        places = [(at, node, key) for at, node, _ in walk(schema) for key in keys if key in node]
        alone = [(at, node, key) for at, node, key in places if key not in OF_ITEMS or key in unheld(node, schema)]
        lost = {f"{at}/{escaped(key)}": error for at, _, key in alone or places}
    elif "min/maxProperties" in error:
        lost = {f"{at}/{key}": error for at, node, _ in walk(schema) for key in _COUNTS if key in node}
    elif "Unknown format" in error:
        name = error.rpartition(": ")[2].strip()
        lost = {f"{at}/format": error for at, node, _ in walk(schema) if node.get("format") == name}
    else:
        return None
    return (without(schema, frozenset(lost)), lost) if lost else None


async def _without_failing(schema: Schema, error: str, error_of: ErrorOf) -> tuple[Schema, dict[str, str]] | None:
    """Without the first thing that fails by itself: bounds of a number, a ``oneOf``, which becomes an ``anyOf``, or
    all that is said of a property."""
    definitions = {key: schema[key] for key in _DEFINITIONS if key in schema}
    for at, node, _ in itertools.islice(walk(schema), MAX_TRIES):
        if _NUMERIC & node.keys():
            bounds = {key: node[key] for key in ("type", *_NUMERIC) if key in node}
            if (why := await error_of(value_spec(bounds))) is not None:
                lost = {f"{at}/{key}": why for key in bounds if key != "type"}
                return without(schema, frozenset(lost)), lost
        if "oneOf" in error and "oneOf" in node and "anyOf" not in node:
            why = await error_of(value_spec({"oneOf": node["oneOf"], **definitions}))
            if why is not None and "oneOf" in why:
                place = f"{at}/oneOf"
                return _rekeyed(schema, {place: "anyOf"}), {place: f"{why.split('. ')[0]}; one or more may hold"}
    properties = schema.get("properties")
    for name, sub in itertools.islice(properties.items() if isinstance(properties, Mapping) else (), MAX_TRIES):
        if isinstance(sub, Mapping) and sub:
            why = await error_of(value_spec({**sub, **definitions}))
            if why is not None:
                place = f"/properties/{escaped(name)}"
                return {**schema, "properties": {**schema["properties"], name: {}}}, {place: why}
    return None


def without(node: Any, pointers: frozenset[str]) -> Any:
    """The schema without what these pointers lead to."""
    return _rekeyed(node, dict.fromkeys(pointers))


def _rekeyed(node: Any, names: Mapping[str, str | None], at: str = "") -> Any:
    """The schema with what stands at these pointers under other names; without it where there is none."""
    if isinstance(node, list):
        return [_rekeyed(item, names, f"{at}/{index}") for index, item in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    found = {}
    for key, value in node.items():
        below = f"{at}/{escaped(key)}"
        name = names.get(below, key)
        if name is not None:
            found[name] = _rekeyed(value, names, below)
    return found


def is_broken(schema: Schema, error: str) -> bool:
    """The schema is wrong in itself, not just beyond the compiler: nothing satisfies it, or a regex is malformed."""
    if "nsatisfiable" in error:
        return True
    return "regex" in error and not all(_is_regex(pattern) for pattern in _patterns(schema))


def _patterns(schema: Schema) -> Iterator[str]:
    for _, node, _ in walk(schema):
        if isinstance(node.get("pattern"), str):
            yield node["pattern"]
        if isinstance(node.get("patternProperties"), Mapping):
            yield from node["patternProperties"]


def _is_regex(pattern: str) -> bool:
    """A second judge, who knows look-around, which the grammar compiler does not."""
    plain = re.sub(r"\\[pP](\{[^}]*\}|[A-Z])|\\x\{[0-9a-f]+\}", "x", pattern)
    plain = plain.replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    try:
        re.compile(plain)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def locate(schema: Schema, error: str) -> str:
    """The pointer of the first place that a compiler's message names a keyword or pattern of; "" if none."""
    for pointer, node, _ in walk(schema):
        for key, value in node.items():
            quoted = key in ("pattern", "format", "type") and isinstance(value, str) and value in error
            if quoted or f'"{key}"' in error:
                return f"{pointer}/{escaped(key)}"
    return ""
