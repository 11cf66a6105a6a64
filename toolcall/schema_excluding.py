"""Values and names that a schema excludes, said without ``not``: what is left of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import Any

from toolcall.regex_dialect import translated, written
from toolcall.schema_values import Schema, canonical, literals

_TYPES = ("string", "number", "boolean", "object", "array", "null")
_COMPOSING = frozenset(("$ref", "$dynamicRef", "anyOf", "oneOf", "allOf"))
_MAX_NUMBERS = 32
_MAX_CHARACTERS = 4_000
_MAX_PATTERN = 32_000
_MAX_DEPTH = 60
"""Brackets in brackets: each is up to four of the 250 that the compiler allows."""
_STEPS = {"(": 1, ")": -1}


def without_values(schema: dict[str, Any]) -> None:
    """``not`` of listed values as those that are left: a shorter list, a pattern, numbers between the numbers."""
    excluded = schema.get("not")
    if not isinstance(excluded, Mapping) or len(excluded) != 1 or not (barred := literals(excluded)):
        return
    if listed := literals(schema):
        texts = set(map(canonical, barred))
        schema.pop("const", None)
        schema["enum"] = [item for item in listed if canonical(item) not in texts]
        del schema["not"]
        return
    declared = schema.get("type")
    if declared is None and _COMPOSING & schema.keys():
        return
    kinds = [declared] if isinstance(declared, str) else list(declared or _TYPES)
    parts = [_others(kind, barred) for kind in kinds]
    if None not in parts:
        del schema["not"]
        _restrict(schema, [part for some in parts for part in some or ()])


def _restrict(schema: dict[str, Any], parts: Sequence[dict[str, Any]]) -> None:
    """Add that one of ``parts`` has to fit."""
    if not parts:
        schema["enum"] = []
        return
    if parts == [{"type": schema.get("type")}]:
        return
    if len(parts) == 1 and not (parts[0].keys() - {"type"}) & schema.keys():
        schema.update(parts[0])
    elif len(parts) == 1 or "anyOf" in schema:
        one = {"anyOf": list(parts)} if len(parts) > 1 else {k: v for k, v in parts[0].items() if k != "type"}
        schema["allOf"] = [*schema.get("allOf", ()), one]
    else:
        schema["anyOf"] = list(parts)


def _others(kind: str, barred: Sequence[Any]) -> list[dict[str, Any]] | None:
    """Schemas for the values of a type that are not listed; None where they cannot be said."""
    if kind == "string":
        texts = [item for item in barred if isinstance(item, str)]
        pattern = other_texts(texts) if texts else ""
        return None if pattern is None else [{"type": kind, **({"pattern": pattern} if pattern else {})}]
    if kind in ("integer", "number"):
        return _other_numbers(kind, [n for n in barred if isinstance(n, int | float) and not isinstance(n, bool)])
    if kind == "boolean":
        left = [item for item in (True, False) if not any(item is no for no in barred)]
        return [{"type": kind}] if len(left) == 2 else [{"enum": left}] if left else []
    if kind == "null":
        return [] if None in barred else [{"type": kind}]
    held: type = dict if kind == "object" else list
    empty = "minProperties" if kind == "object" else "minItems"
    inside = [item for item in barred if isinstance(item, held)]
    return [{"type": kind}] if not inside else [{"type": kind, empty: 1}] if not any(inside) else None


def _other_numbers(kind: str, barred: Collection[float]) -> list[dict[str, Any]] | None:
    """The ranges between the numbers."""
    stops = sorted({number for number in barred if kind == "number" or float(number).is_integer()})
    if len(stops) > _MAX_NUMBERS:
        return None
    found: list[dict[str, Any]] = []
    for low, high in zip([None, *stops], [*stops, None], strict=True):
        part: dict[str, Any] = {"type": kind}
        part |= {} if low is None else {"exclusiveMinimum": low}
        part |= {} if high is None else {"exclusiveMaximum": high}
        if low is None or high is None or kind == "number" or high - low > 1:
            found.append(part)
    return found


def other_texts(texts: Collection[str]) -> str | None:
    """A pattern of all texts but these; None where it would be long."""
    if sum(map(len, texts)) > _MAX_CHARACTERS:
        return None
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    pattern = f"^{_other(tree)}$"
    return pattern if len(pattern) <= _MAX_PATTERN and _depth(pattern) <= _MAX_DEPTH else None


def _depth(pattern: str) -> int:
    """How many brackets stand in one another, as good as the compiler counts them."""
    return max(accumulate(_STEPS.get(char, 0) for char in pattern))


def _other(node: Mapping[str, Any]) -> str:
    """What may follow where the texts of a tree have come to this node, to be none of them."""
    following = {char: after for char, after in node.items() if char}
    if not following:
        return "(?s:.+)"
    parts = [_but("".join(following))]
    for char, after in following.items():
        run = ""
        while len(after) == 1 and "" not in after:
            ((step, after),) = after.items()
            run += step
        rest = _literal(run) + _other(after)
        parts.append(_literal(char) + (f"(?:{_leaving(run)}|{rest})" if run else rest))
    return f"(?:{'|'.join(parts)}){'' if '' in node else '?'}"


def _leaving(run: str) -> str:
    """Texts that do not begin like this one: the beginnings of it, and what goes on otherwise. Halved, for the compiler
    counts brackets in brackets."""
    if len(run) == 1:
        return f"(?:{_but(run)})?"
    first, second = run[: len(run) // 2], run[len(run) // 2 :]
    return f"(?:{_leaving(first)}|{_literal(first)}{_leaving(second)})"


def _but(chars: str) -> str:
    """Texts that begin with none of these characters."""
    return translated(f"[^{_literal(chars)}]") + "(?s:.*)"


def _literal(text: str) -> str:
    return "".join(written(ord(char)) for char in text)


def without_names(schema: dict[str, Any]) -> None:
    """What is said of properties that are not listed, with a pattern that fits none that are: the compiler would take a
    listed name that is spelt with escapes for another."""
    others = schema.get("additionalProperties", True)
    required = schema.get("required")
    listed = dict.fromkeys(required if isinstance(required, list) else (), others)
    listed = {
        **schema.get("properties", {}),
        **{key: sub for key, sub in listed.items() if key not in schema.get("properties", {})},
    }
    if others is False or not listed or "patternProperties" in schema or schema.get("type") != "object":
        return
    if (pattern := other_texts(listed)) is not None:
        listed = {name: sub for name, sub in listed.items() if sub is not False or name in (required or ())}
        schema.update({"properties": listed, "patternProperties": {pattern: others}, "additionalProperties": False})


def only_other_names(schema: Schema) -> bool:
    """Whether patterns of names are those that ``without_names`` writes."""
    patterns, listed = schema.get("patternProperties"), schema.get("properties")
    return (
        isinstance(patterns, Mapping)
        and isinstance(listed, Mapping)
        and schema.get("additionalProperties") is False
        and patterns.keys() == {other_texts(listed)}
    )
