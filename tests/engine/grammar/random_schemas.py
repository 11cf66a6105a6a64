"""JSON schemas at random, of the shapes that clients write and of some that they had better not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

Schema = dict[str, Any]

NAMES = (
    "city", "unit", "days", "a", "b", "file_path", "line-count", "ünïcode", "with space", 'quo"te', "back\\slash", "$id_",
    "type", "properties", "items", "required", "enum", "anyOf", "name", "arguments", "</tool_call>", "新", "0", "a/b~c",
)  # fmt: skip
STRINGS = (
    "c",
    "f",
    "",
    'a"b',
    "é",
    "中",
    "new\nline",
    "</tool_call>",
    "true",
    "null",
    "12",
    "a b",
    "\\",
    "{",
    "<tool_call>",
)
PATTERNS = ("^[a-z]+$", "^[A-Z]{2}[0-9]{3}$", "^(red|green|blue)$", "[0-9]", "^a", "b$", r"^\d{4}-\d{2}$", "^[^x]*$")
FORMATS = ("date", "date-time", "time", "uuid", "email", "ipv4", "uri")


def schemas(count: int, seed: int = 0, *, markers: bool = True) -> list[Schema]:
    """``count`` object schemas, as tools and documents have them; the same for the same seed. ``markers``: names
    may hold the marks of XML, which formats with one element per parameter cannot spell."""
    rng = random.Random(seed)
    names = NAMES if markers else tuple(name for name in NAMES if "<" not in name)
    return [Maker(rng, names).root() for _ in range(count)]


class Maker:
    """Writes one schema. Definitions are made as they are referred to, some of them refer to themselves."""

    def __init__(self, rng: random.Random, names: Sequence[str] = NAMES) -> None:
        self.rng = rng
        self.names = names
        self.definitions: Schema = {}

    def root(self) -> Schema:
        schema = self.object(0)
        if self.definitions:
            schema["$defs"] = self.definitions
        return schema

    def any(self, depth: int) -> Any:
        leaves: list[Callable[[], Any]] = [
            self.string, self.string, self.integer, self.number, self.boolean, self.enum, self.const, self.nullable,
        ]  # fmt: skip
        inner = [self.object, self.object, self.array, self.array, self.union, self.reference, self.mapping, self.tuple]
        if depth >= 3 or self.rng.random() < 0.5:
            schema = self.rng.choice(leaves)()
        elif self.rng.random() < 0.03:
            return self.rng.choice([True, {}])
        else:
            schema = self.rng.choice(inner)(depth + 1)
        if self.rng.random() < 0.2:
            schema = {**schema, "description": "Like 'this' or \"that\"."}
        return schema

    def object(self, depth: int) -> Schema:
        rng = self.rng
        names = rng.sample(self.names, rng.randint(0 if depth else 1, 5 if depth == 0 else 3))
        schema: Schema = {"type": "object", "properties": {name: self.any(depth + 1) for name in names}}
        required = [name for name in names if rng.random() < 0.6]
        if required or rng.random() < 0.3:
            schema["required"] = rng.sample(required, len(required))
        if rng.random() < 0.4:
            schema["additionalProperties"] = rng.choice([False, False, False, {"type": "integer"}])
        return schema

    def string(self) -> Schema:
        rng, schema = self.rng, {"type": "string"}
        kind = rng.random()
        if kind < 0.2:
            low = rng.randint(0, 4)
            return {**schema, "minLength": low, "maxLength": low + rng.randint(0, 30)}
        if kind < 0.35:
            return {**schema, "pattern": rng.choice(PATTERNS)}
        if kind < 0.5:
            return {**schema, "format": rng.choice(FORMATS)}
        if kind < 0.6:
            return {**schema, "maxLength": rng.choice([0, 1, 8, 200])}
        return dict(schema)

    def integer(self) -> Schema:
        low = self.rng.randint(-200, 200)
        bounds = self.rng.choice(
            [
                {},
                {"minimum": low},
                {"minimum": low, "maximum": low + self.rng.randint(0, 500)},
                {"exclusiveMinimum": low, "exclusiveMaximum": low + 7},
                {"multipleOf": self.rng.choice([2, 5, 10])},
            ]
        )
        return {"type": "integer", **bounds}

    def number(self) -> Schema:
        low = round(self.rng.uniform(-50, 50), self.rng.randint(0, 3))
        return {
            "type": "number",
            **self.rng.choice([{}, {"minimum": low}, {"minimum": low, "maximum": low + 12.5}, {"maximum": low}]),
        }

    def boolean(self) -> Schema:
        return {"type": self.rng.choice(["boolean", "boolean", "null"])}

    def enum(self) -> Schema:
        rng = self.rng
        values: list[Any] = rng.sample(STRINGS, rng.randint(1, 5))
        if rng.random() < 0.4:
            return {"enum": values + rng.sample([1, 2.5, None, True, -3], 2)}
        return {"type": "string", "enum": values}

    def const(self) -> Schema:
        return {"const": self.rng.choice([*STRINGS, 7, None, False, [1, "a"], {"k": "v"}])}

    def nullable(self) -> Schema:
        kind = self.rng.choice(["string", "integer", "boolean", "number"])
        return self.rng.choice(
            [{"type": [kind, "null"]}, {"anyOf": [{"type": kind}, {"type": "null"}], "default": None}]
        )

    def array(self, depth: int) -> Schema:
        low = self.rng.randint(0, 2)
        return {
            "type": "array",
            "items": self.any(depth),
            **self.rng.choice([{}, {"minItems": low}, {"maxItems": low + 2}, {"minItems": low, "maxItems": low + 1}]),
        }

    def tuple(self, depth: int) -> Schema:
        items = [self.any(depth) for _ in range(self.rng.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}

    def mapping(self, depth: int) -> Schema:
        return {"type": "object", "additionalProperties": self.any(depth)}

    def union(self, depth: int) -> Schema:
        return {self.rng.choice(["anyOf", "anyOf", "oneOf"]): [self.any(depth) for _ in range(self.rng.randint(1, 3))]}

    def reference(self, depth: int) -> Schema:
        name = self.rng.choice(["Node", "Item", "Kind"])
        if name not in self.definitions:
            self.definitions[name] = {}
            self.definitions[name] = self.object(depth)
            if name == "Node" and self.rng.random() < 0.5:
                children = {"type": "array", "items": {"$ref": "#/$defs/Node"}, "maxItems": 2}
                self.definitions[name]["properties"]["children"] = children
        return {"$ref": f"#/$defs/{name}"}


def recorded(path: Path) -> Iterator[Schema]:
    """Schemas out of a file of JSON or JSON lines: whatever stands under ``parameters`` or ``input_schema``."""
    for line in path.read_text("utf-8").splitlines():
        try:
            yield from _find(json.loads(line))
        except ValueError:
            continue


def _find(value: Any) -> Iterator[Schema]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("parameters", "input_schema") and isinstance(item, dict) and "properties" in item:
                yield item
            yield from _find(item)
    elif isinstance(value, list):
        for item in value:
            yield from _find(item)
