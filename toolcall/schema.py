"""What the declared tools say about names and argument types, and text turned into JSON by it.

XML-like formats write every value as text, so the type comes from the parameter's JSON schema: ``$ref``, ``anyOf``,
``oneOf``, ``allOf`` and lists of types are resolved, a string wins where one is allowed, and text that fits no
type stays text.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from toolcall.json_text import encodable, number, quote
from toolcall.json_whole import loose_json
from toolcall.schema_references import follow

_STRING = "string str text varchar char enum date datetime uuid"
_INTEGER = "integer int int8 int16 int32 int64 uint uint8 uint16 uint32 uint64 long short byte bigint unsigned"
_NUMBER = "number float float32 float64 double decimal real"
_BOOLEAN = "boolean bool binary"
_OBJECT = "object dict map hashmap struct"
_ARRAY = "array arr list sequence tuple set arraylist"
ALIASES: Mapping[str, str] = {
    alias: kind
    for kind, aliases in (
        ("string", _STRING),
        ("integer", _INTEGER),
        ("number", _NUMBER),
        ("boolean", _BOOLEAN),
        ("object", _OBJECT),
        ("array", _ARRAY),
        ("null", "null none nil"),
        ("any", "any"),
    )
    for alias in aliases.split()
}
IMPLIED: Mapping[str, str] = {
    keyword: kind
    for kind, keywords in (
        (
            "object",
            "properties additionalProperties required patternProperties propertyNames minProperties maxProperties",
        ),
        ("array", "items prefixItems minItems maxItems uniqueItems contains"),
        ("number", "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
        ("string", "pattern minLength maxLength format"),
    )
    for keyword in keywords.split()
}
"""The type that a keyword speaks of. One without a type beside it allows any other value, and does not mean it."""
_OPENING = ("{", "[", "(")
_LAYOUT = re.compile(r"\A(?:```\w*+|\\[nrt]|\s)++|(?:```|\\[nrt]|\s)+\Z")
"""Around an object or a list: fences, and line ends that are written as escapes."""
_INT = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,399}(?:\.0+)?")
_EXPONENT = re.compile(r"[+-]?[0-9]{1,9}(?:\.[0-9]{1,6})?[eE]\+?[0-9]{1,2}")
_EXACT = 2.0**53
"""Above it a float no longer says which integer was written."""
_NULLS = ("null", "none", "nil")
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on"), "true"),
    **dict.fromkeys(("false", "0", "no", "off"), "false"),
}
_MAX_REFS = 32
_MAX_PARTS = 256
"""Of a tool's schema, each of which may list parameters."""
_AROUND = " \t\r\n\"'"
_STEMS = ("functions.", "function.", "tools.", "tool.", "default_api.")
"""Namespaces that models put in front of a tool's name."""
_SEPARATORS = re.compile(r"[-_.\s]+")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
"""A name that a client may have given a tool."""


@dataclass(frozen=True, slots=True)
class ParamType:
    """The JSON types that a parameter allows; empty = the schema says nothing. texts: the strings that are allowed,
    None where any is."""

    kinds: frozenset[str] = frozenset()
    texts: frozenset[str] | None = None

    @property
    def streams(self) -> bool:
        """Whether a value can be sent as it arrives: a string whatever it says."""
        return "string" in self.kinds and "null" not in self.kinds and self.texts is None

    @property
    def _limited(self) -> bool:
        return self.texts is not None and len(self.kinds) > 1

    def kinds_for(self, text: str) -> frozenset[str]:
        """The types that this text may be of: no string where it is none of those that are allowed."""
        return self.kinds - {"string"} if self._limited and text not in (self.texts or ()) else self.kinds


ANY = ParamType(frozenset({"any"}))
STRING = ParamType(frozenset({"string"}))


def kinds_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    """The types a schema allows. root: the document that ``$ref`` points into."""
    if not isinstance(schema, Mapping) or depth > _MAX_REFS:
        return frozenset()
    ref = schema.get("$ref")
    if isinstance(ref, str):
        return kinds_of(follow(ref, root), root, depth + 1)
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    kinds = {_kind(n) for n in names if isinstance(n, str)} - {""}
    if kinds:
        return frozenset(kinds | ({"null"} if schema.get("nullable") is True else set()))
    if "const" in schema:
        return frozenset({_kind_of_value(schema["const"])})
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return frozenset(_kind_of_value(v) for v in schema["enum"])
    for word in ("anyOf", "oneOf"):
        if isinstance(schema.get(word), list):
            return frozenset().union(*(kinds_of(s, root, depth + 1) for s in schema[word]))
    if isinstance(schema.get("allOf"), list):
        parts = [k for s in schema["allOf"] if (k := kinds_of(s, root, depth + 1))]
        return frozenset.intersection(*parts) or parts[0] if parts else frozenset()
    excluded = schema.get("not")
    if isinstance(excluded, Mapping) and len(excluded) == 1 and "type" in excluded:
        return frozenset(ALIASES.values()) - {"any"} - kinds_of(excluded, root, depth + 1)
    implied = {IMPLIED[key] for key in schema if key in IMPLIED}
    return frozenset(implied) if len(implied) == 1 else frozenset()


def _texts_of(schema: Any, root: Any, depth: int = 0) -> frozenset[str] | None:
    """The strings that a schema lists, None where it allows any."""
    if not isinstance(schema, Mapping) or depth > _MAX_REFS or "string" not in kinds_of(schema, root):
        return frozenset()
    if isinstance(schema.get("$ref"), str):
        return _texts_of(follow(schema["$ref"], root), root, depth + 1)
    if "const" in schema or isinstance(schema.get("enum"), list):
        return frozenset(v for v in (schema.get("const"), *_list(schema.get("enum"))) if isinstance(v, str))
    parts = next((schema[word] for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list)), None)
    if parts is None or schema.get("type") is not None:
        return None
    found = [_texts_of(part, root, depth + 1) for part in parts]
    return frozenset().union(*(texts for texts in found if texts)) if None not in found else None


def type_of(schema: Any, root: Any) -> ParamType:
    """The type of a schema inside its document."""
    kinds = kinds_of(schema, root)
    return ParamType(kinds, _texts_of(schema, root) if "string" in kinds else None)


def _kind(name: str) -> str:
    plain = name.strip().lower()
    return ALIASES.get(plain) or ALIASES.get(re.split(r"[\[<(]", plain, maxsplit=1)[0], "")


def _kind_of_value(value: Any) -> str:
    if value is None:
        return "null"
    for types, kind in ((bool, "boolean"), (str, "string"), (int, "integer"), (float, "number"), (list, "array")):
        if isinstance(value, types):
            return kind
    return "object"


def to_json(text: str, kind: ParamType) -> str:
    """The JSON of a value written as text. Never fails: what fits no type becomes a string."""
    plain = text.strip()
    kinds = kind.kinds_for(plain)
    if "string" not in kinds and ((kinds and plain.lower() in _NULLS) or (not plain and "null" in kinds)):
        return "null"
    if "string" in kinds:
        if "null" in kinds and plain == "null":
            return "null"
        texts = kind.texts or ()
        return quote(plain if text not in texts and plain in texts else text)
    if "any" in kinds:
        return _typed(plain, kinds) or loose_json(plain) or quote(text)
    return _typed(plain, kinds) or _typed(_unquoted(plain), kinds) or quote(text)


def _typed(text: str, kinds: frozenset[str]) -> str | None:
    """The JSON of a text that fits one of the types, None if it fits none."""
    for name, convert in (("integer", _integer), ("number", number), ("boolean", _boolean)):
        if name in kinds and (value := convert(text)) is not None:
            return value
    if not kinds & {"object", "array"}:
        return loose_json(text) if not kinds and text[:1] in _OPENING else None
    meant = "any" not in kinds
    text = _LAYOUT.sub("", text) if meant else text
    return loose_json(text, ends=meant) if text[:1] in _OPENING else None


def _unquoted(text: str) -> str:
    """What stands in a JSON string: models quote values that are no strings."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return ""
    try:
        return encodable(str(json.loads(text, strict=False)).strip())
    except ValueError:
        return ""


def _integer(text: str) -> str | None:
    if _INT.fullmatch(text):
        return number(text.split(".")[0])
    if _EXPONENT.fullmatch(text) and (value := float(text)).is_integer() and abs(value) < _EXACT:
        return str(int(value))
    return None


def _boolean(text: str) -> str | None:
    return _BOOLEANS.get(text.lower())


def resolve(schema: Any, root: Any) -> Any:
    """The schema that a chain of ``$ref`` leads to."""
    for _ in range(_MAX_REFS):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            break
        schema = follow(schema["$ref"], root)
    return schema


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """A schema inside its document."""

    schema: Any
    root: Any

    @property
    def type(self) -> ParamType:
        return type_of(self.schema, self.root)

    def child(self, key: str) -> SchemaNode:
        """The schema of a member (or, for any key, of an element of an array)."""
        schema = resolve(self.schema, self.root)
        if not isinstance(schema, Mapping):
            return SchemaNode(None, self.root)
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return SchemaNode(properties[key], self.root)
        return SchemaNode(schema.get("items", schema.get("additionalProperties")), self.root)


class Tool:
    """One declared function."""

    def __init__(self, name: str, parameters: Any) -> None:
        self.name = name
        self._root = parameters if isinstance(parameters, Mapping) else {}

    @cached_property
    def _schemas(self) -> Mapping[str, Any]:
        """Each parameter's schema, wherever it is listed; one of several where branches say different things."""
        found: dict[str, list[Any]] = {}
        todo: list[tuple[Any, bool]] = [(self._root, False)]
        for _ in range(_MAX_PARTS):
            if not todo:
                break
            part, either = todo.pop()
            whole = resolve(part, self._root)
            if not isinstance(whole, Mapping):
                continue
            for word in ("oneOf", "anyOf", "allOf"):
                todo += [(inner, either or word != "allOf") for inner in reversed(_list(whole.get(word)))]
            properties = whole.get("properties")
            for key, sub in properties.items() if isinstance(properties, Mapping) else ():
                known = found.setdefault(str(key), [])
                if not known or (either and sub not in known and sub not in (True, {})):
                    known.append(sub)
        return {key: known[0] if len(known) == 1 else {"anyOf": known} for key, known in found.items()}

    @cached_property
    def _kinds(self) -> Mapping[str, ParamType]:
        return {k: type_of(v, self._root) for k, v in self._schemas.items()}

    @cached_property
    def _other_kind(self) -> ParamType:
        schema = resolve(self._root, self._root)
        others = schema.get("additionalProperties") if isinstance(schema, Mapping) else None
        return type_of(others, self._root)

    def type_of(self, key: str) -> ParamType:
        """The type of a parameter; of one that is not listed, what ``additionalProperties`` says."""
        return self._kinds.get(key, self._other_kind)

    def schema_of(self, key: str) -> SchemaNode:
        return SchemaNode(self._schemas.get(key), self._root)

    @property
    def schema(self) -> SchemaNode:
        """The schema of the arguments as a whole."""
        return SchemaNode(self._root, self._root)

    def has(self, key: str) -> bool:
        return key in self._kinds

    def may_have(self, text: str) -> bool:
        """Whether a key that begins like this, and the marker after it, may be one of the parameters."""
        return any(k.startswith(text) or text.startswith(k) for k in self._kinds)

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._kinds)


def _letters(name: str) -> str:
    return _SEPARATORS.sub("", name).lower()


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


class ToolSet:
    """The declared tools by name. Accepts OpenAI's ``{"type": "function", "function": {...}}`` and bare functions.

    refused: names that no call may have, although they are declared elsewhere.
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]], refused: Collection[str] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        self._refused = frozenset(refused)
        for tool in tools:
            inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(inner, Mapping) and isinstance(inner.get("name"), str) and inner["name"]:
                parameters = inner.get("parameters", inner.get("input_schema"))
                self._tools[inner["name"]] = Tool(inner["name"], parameters)
        self._sorted = sorted(self._tools)
        self._longest = max(map(len, self._tools), default=0)

    def __bool__(self) -> bool:
        return bool(self._tools)

    def __iter__(self) -> Any:
        return iter(self._tools.values())

    def get(self, name: str) -> Tool | None:
        """The tool of this name; white space and quotes around it do not matter, ``functions.`` before it neither."""
        plain = name.strip(_AROUND)
        return self._tools.get(name) or self._tools.get(plain) or self._tools.get(_without_stem(plain))

    def meant(self, name: str) -> Tool | None:
        """The only tool whose name is this one but for case and separators: ``get_it`` for ``Get-It``."""
        plain = _without_stem(name.strip(_AROUND))
        found = [] if plain in self._refused else self._by_letters.get(_letters(plain), [])
        return found[0] if len(found) == 1 else None

    @cached_property
    def _by_letters(self) -> Mapping[str, list[Tool]]:
        found: dict[str, list[Tool]] = {}
        for tool in self._tools.values():
            found.setdefault(_letters(tool.name), []).append(tool)
        return found

    def undeclared(self, name: str) -> Tool | None:
        """A tool of this name about which nothing is known; None where the name is none, or is refused."""
        plain = _without_stem(name.strip(_AROUND))
        return Tool(plain, None) if _NAME.fullmatch(plain) and plain not in self._refused else None

    def may_begin_undeclared(self, text: str) -> bool:
        """Whether more text can make this a name."""
        plain = text.strip(_AROUND)
        return not plain or _NAME.fullmatch(plain) is not None

    def may_begin(self, text: str) -> bool:
        """Whether more text can still make this the name of a declared tool."""
        plain = text.lstrip(_AROUND)
        if self._begins(plain) or plain.rstrip(_AROUND) in self._tools:
            return len(text) < self._longest + 64
        return plain.startswith(_STEMS) and self.may_begin(_without_stem(plain))

    def _begins(self, plain: str) -> bool:
        at = bisect.bisect_left(self._sorted, plain)
        return (at < len(self._sorted) and self._sorted[at].startswith(plain)) or any(
            stem.startswith(plain) for stem in _STEMS
        )


def _without_stem(name: str) -> str:
    return next((name[len(stem) :] for stem in _STEMS if name.startswith(stem)), name)


NO_TOOLS = ToolSet(())
