"""What real schemas say in words that the grammar compiler does not know: held all the same, and never widened."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from engine.grammar.llguidance_backend import LLGuidanceBackend
from engine.messages import GrammarSpec
from tests.cases.grammars import follows
from tests.engine.grammar.vocabulary import backend
from tests.toolcall.conftest import scaled
from tests.toolcall.test_forced_calls import one, write
from toolcall.constraint_raw import without_marks
from toolcall.constraint_styles import STYLES
from toolcall.constraints import ConstrainedTool, ConstraintRequest, build_constraint, call_gaps
from toolcall.regex_dialect import translated
from toolcall.schema import Tool, type_of
from toolcall.schema_narrowing import narrowed

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
BASE = {"type": "object", "properties": {"id": STRING}, "required": ["id"]}
OF_BASE = {"allOf": [{"$ref": "#/$defs/base"}, {"properties": {"x": INTEGER}, "required": ["x"]}]}


def tagged(kind: str, /, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"kind": {"const": kind, "default": kind}, **more}}


HELD: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "inheritance": (one(OF_BASE, **{"$defs": {"base": BASE}}), {"id": "a", "x": 1}, {"id": "a"}),
    "inheritance, closed": (one({**OF_BASE, "unevaluatedProperties": False}, **{"$defs": {"base": BASE}}), {"id": "a", "x": 1}, {"id": "a", "x": 1, "y": 1}),
    "one part": (one({"allOf": [{"$ref": "#/$defs/c"}], "default": "a"}, **{"$defs": {"c": {"enum": ["a", "b"]}}}), "b", "c"),
    "parts of a number": (one({"allOf": [{"type": "number"}, {"type": "integer", "minimum": 3}], "maximum": 5}), 4, 2),
    "tags that have defaults": (one({"oneOf": [tagged("cat", lives=INTEGER), tagged("dog", name=STRING)]}), {"kind": "dog", "name": "x"}, {"name": "x"}),
    "titles of values": (one({"oneOf": [{"const": "a", "title": "A"}, {"const": "b", "title": "B"}]}), "a", "A"),
    "a definition or null": (one({"oneOf": [{"$ref": "#/$defs/base"}, {"type": "null"}]}, **{"$defs": {"base": BASE}}), None, {"id": 1}),
    "draft 4": (one({"type": "integer", "minimum": 3, "exclusiveMinimum": True}), 4, 3),
    "draft 7": (one({"type": "array", "items": [STRING, INTEGER], "additionalItems": False, "minItems": 2}), ["a", 1], [1, 1]),
    "64 bits": (one({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}), 123456789012345678, 2**63),
    "float32": (one({"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38}), 5.5, "x"),
    "the smallest number": (one({"type": "number", "minimum": 5e-324, "maximum": 1}), 0.25, -1),
    "a count with a point": (one({"type": "string", "minLength": 2.0, "maxLength": 3.0}), "ab", "abcd"),
    "names by a pattern": (one({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": INTEGER}), {"a": 1}, {"A": 1}),
    "names by a list": (one({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER}), {"b": 1}, {"c": 1}),
    "names are strings": (one({"type": "object", "propertyNames": STRING, "additionalProperties": INTEGER}), {"b": 1}, {"b": "x"}),
    "no property": ({"type": "object", "properties": {"p": STRING, "q": False}, "required": ["p"]}, "a", 1),
    "an escaped name": (one({"$ref": "#/$defs/Page%5BItem%5D"}, **{"$defs": {"Page[Item]": INTEGER}}), 5, "x"),
    "an odd name": (one({"$ref": "#/$defs/Page[Item]"}, **{"$defs": {"Page[Item]": INTEGER}}), 5, "x"),
    "a name of another script": (one({"$ref": "#/$defs/天气"}, **{"$defs": {"天气": INTEGER}}), 5, "x"),
    "a bound without a type": (one({"minimum": 3}), 4, 2),
    "listed, by a pattern": (one({"enum": ["aa", "c1"], "pattern": "^[a-z]+$"}), "aa", "c1"),
    "listed, by a length": (one({"enum": ["a", "bb"], "minLength": 2}), "bb", "a"),
    "listed, but one": (one({"enum": ["a", "b"], "not": {"const": "a"}}), "b", "a"),
    "any type but one": (one({"not": STRING}), 5, "x"),
    "5,000 listed": (one({"enum": [f"item {index}" for index in range(5000)]}), "item 4999", "item 5000"),
    "what another requires": (one(STRING, properties={"q": STRING}, dependentRequired={"p": ["q"]}, required=["p", "q"]), "a", 1),
    "a list of at most one": (one({"type": "array", "items": INTEGER, "uniqueItems": True, "maxItems": 1}), [1], [1, 1]),
    "no quotes": (one({"type": "string", "pattern": '^[^"]{1,4}$'}), "a\\b", 'a"b'),
    "control characters": (one({"type": "string", "pattern": "^[\\x00-\\x1f]{1,4}$"}), "\t", '"'),
    "digits": (one({"type": "string", "pattern": r"^\d\w\s$"}), "1a\n", "٣a\n"),
    "one line": (one({"type": "string", "pattern": "^.$"}), "a", "\u2028"),
    "marks in a class": (one({"type": "string", "pattern": r"^[\w-.]&&[[]$"}), "-&&[", "-&&]"),
    "a leap second": (one({"type": "string", "format": "date-time"}), "2024-02-29T10:00:59Z", "2024-02-29T10:00:60Z"),
    "an address": (one({"type": "string", "format": "email"}), "first.middle.last@a.co.uk", f"{'a' * 65}@a.org"),
    "a short address": (one({"type": "string", "format": "ipv6"}), "fe80::1", "fe80:1"),
    "no slashes": (one({"type": "string", "format": "uri"}), "mailto:a@b.org", "a b"),
    "the end of a month": (one({"type": "string", "format": "date"}), "2024-12-31", "2023-02-29"),
    "a format of nobody": (one({"type": "string", "format": "password"}), "x", 1),
    "anchors in alternatives": (one({"type": "string", "pattern": "^$|^https?://a$"}), "http://a", "http://ab"),
    "the text of Python": (one({"type": "string", "pattern": r"\Aab\Z"}), "ab", "abc"),
}  # fmt: skip
"""schema, a value of ``p`` that is allowed, one that is not."""
KIND = {"enum": ["a", "b", "c"]}
AB = {"type": "object", "properties": {"k": KIND, "n": INTEGER, "s": STRING}}
IF_A = {"properties": {"k": {"const": "a"}}, "required": ["k"]}


def listing(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, **more}


CONDITIONS: dict[str, tuple[Any, Any, Any]] = {
    "different": (listing(KIND, uniqueItems=True), ["c", "a"], ["a", "a"]),
    "different, all": (listing(KIND, uniqueItems=True, minItems=3), ["c", "a", "b"], ["c", "a"]),
    "different, two": (listing(KIND, uniqueItems=True, maxItems=2), ["c", "a"], ["c", "a", "b"]),
    "different, of many types": (listing({"enum": [1, True, "1", None, [1]]}, uniqueItems=True), [1, True, "1", None, [1]], [1, 1]),
    "different, true or false": (listing({"type": "boolean"}, uniqueItems=True), [True, False], [True, True]),
    "different, few numbers": (listing({"type": "integer", "minimum": 0, "exclusiveMaximum": 7}, uniqueItems=True), [6, 0], [6, 6]),
    "different, or null": ({"anyOf": [listing(KIND, uniqueItems=True), {"type": "null"}]}, None, ["a", "a"]),
    "different, in a list": (listing({"type": "object", "properties": {"x": listing(KIND, uniqueItems=True)}, "required": ["x"]}), [{"x": ["b", "a"]}], [{"x": ["b", "b"]}]),
    "different, in lists": (listing(listing(KIND, uniqueItems=True), minItems=1, maxItems=2), [["a"], ["a"]], [["a", "a"]]),
    "one at least": (listing(STRING, contains={"const": "a"}), ["b", "a", "b"], ["b", "b"]),
    "one of few at least": (listing(KIND, contains={"const": "a"}, maxItems=3), ["b", "c", "a"], ["b", "c", "c"]),
    "two at least": (listing({}, contains=INTEGER, minContains=2, minItems=3, maxItems=4), [1, "a", "b", 2], [1, "a", "b", "c"]),
    "an object of a kind": (listing(AB, contains={"required": ["n"]}, minItems=2), [{}, {"n": 1}], [{}, {}]),
    "if, then": ({**AB, "if": IF_A, "then": {"required": ["n"]}}, {"k": "a", "n": 1}, {"k": "a"}),
    "if, else": ({**AB, "if": IF_A, "else": {"required": ["n"]}}, {"k": "a"}, {"k": "b"}),
    "if it is there": ({**AB, "if": {"required": ["n"]}, "then": {"required": ["s"]}, "else": {"required": ["k"]}}, {"n": 1, "s": "x"}, {}),
    "if any text": ({**AB, "properties": {"k": STRING, "n": INTEGER}, "if": IF_A, "then": {"required": ["n"]}}, {"k": "ab"}, {"k": "a"}),
    "if, of a value": ({"type": ["string", "integer"], "if": STRING, "then": {"minLength": 2}, "else": {"minimum": 4}}, "ab", "a"),
    "if, then a bound": ({**AB, "required": ["k"], "if": {"properties": {"k": {"enum": ["a", "b"]}}}, "then": {"properties": {"n": {"minimum": 5}}}}, {"k": "c", "n": 1}, {"k": "b", "n": 1}),
    "several ifs": ({**AB, "required": ["k"], "allOf": [{"if": {"properties": {"k": {"const": k}}}, "then": {"required": [n]}} for k, n in (("a", "n"), ("b", "s"))]}, {"k": "b", "s": ""}, {"k": "a", "s": ""}),
    "then without if": ({"type": "string", "then": {"minLength": 3}}, "a", 1),
    "what one needs": ({**AB, "dependentRequired": {"n": ["s"]}}, {"n": 1, "s": ""}, {"n": 1}),
    "what one changes": ({**AB, "dependentSchemas": {"k": {"properties": {"n": {"maximum": 3}}, "required": ["n"]}}}, {"k": "a", "n": 3}, {"k": "a", "n": 4}),
    "what one changed": ({**AB, "dependencies": {"k": {"required": ["n"]}, "s": ["k"]}}, {"k": "a", "n": 1, "s": ""}, {"n": 1, "s": ""}),
    "no such text": ({"type": "string", "not": {"enum": ["a", "", 'x"y']}}, "aa", 'x"y'),
    "no such number": ({"type": "integer", "minimum": 0, "not": {"enum": [1, 2.0]}}, 3, 2),
    "no such value": ({"not": {"const": "a"}}, 1, "a"),
    "nothing but": ({"type": "boolean", "not": {"const": True}}, False, True),
    "not larger": ({"type": "integer", "not": {"minimum": 3}}, 2, 3),
    "not both": ({**AB, "not": {"required": ["k", "n"]}}, {"n": 1}, {"k": "a", "n": 1}),
    "not such an object": ({**AB, "not": {"properties": {"k": {"const": "a"}}, "required": ["k"]}}, {"k": "b"}, {"k": "a"}),
    "no or": ({**AB, "not": {"anyOf": [{"required": ["k"]}, {"required": ["n"]}]}}, {"s": ""}, {"n": 1}),
    "never": ({"anyOf": [{"not": {}}, STRING]}, "a", 1),
    "either": ({**AB, "oneOf": [{"required": ["k"]}, {"required": ["n"]}]}, {"n": 1}, {"k": "a", "n": 1}),
    "either of two closed ones": ({"oneOf": [{**BASE, "additionalProperties": False}, {"type": "object", "properties": {"x": INTEGER}, "additionalProperties": False}]}, {"x": 1}, {"id": "a", "x": 1}),
    "a word or digits": ({"oneOf": [{"const": "auto"}, {"type": "string", "pattern": "^[0-9]+$"}]}, "12", "aut"),
    "below or above": ({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 10}]}, 10, 5),
    "either, of texts": ({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "string", "minLength": 2}]}, "abcd", "ab"),
    "two of three": ({**AB, "minProperties": 2}, {"k": "a", "s": ""}, {"k": "a"}),
    "two at most": ({**AB, "maxProperties": 2}, {"k": "a", "s": ""}, {"k": "a", "n": 1, "s": ""}),
    "names that fit": ({**AB, "propertyNames": {"pattern": "^[kn]$"}}, {"k": "a"}, {"s": ""}),
    "names of a format": ({"type": "object", "propertyNames": {"format": "date"}, "additionalProperties": INTEGER}, {"2024-02-29": 1}, {"a": 1}),
    "names by several lists": ({"type": "object", "propertyNames": {"anyOf": [{"const": "a"}, {"enum": ["b"]}]}}, {"b": 1}, {"c": 1}),
    "any name but one": ({"type": "object", "propertyNames": {"not": {"const": "a"}}, "additionalProperties": INTEGER}, {"b": 1}, {"a": 1}),
    "a definition and more": ({"$ref": "#/$defs/base", "properties": {"x": INTEGER}}, {"id": "a", "x": 1}, {"id": 1, "x": 1}),
    "another name": ({"type": "object", "properties": {"a": INTEGER}, "additionalProperties": STRING}, {"a": 1, "b": ""}, {"a": ""}),
    "all that is evaluated": ({"anyOf": [IF_A, {"properties": {"n": INTEGER}, "required": ["n"]}], "type": "object", "unevaluatedProperties": False}, {"n": 1}, {"n": 1, "x": 1}),
    "all items that are": ({"type": "array", "prefixItems": [STRING], "unevaluatedItems": False}, ["a"], ["a", 1]),
}  # fmt: skip
HELD.update(
    {case: (one(schema, **{"$defs": {"base": BASE}}), good, bad) for case, (schema, good, bad) in CONDITIONS.items()}
)
FORMATS = ("hermes", "qwen3_coder", "glm45", "gemma4", "minicpm5", "pythonic")


@pytest.fixture(scope="module")
def engine() -> LLGuidanceBackend:
    return backend()


def call(schema: dict[str, Any], value: Any) -> str:
    more = {name: "z" for name in schema["required"] if name != "p"}
    return (
        f"<tool_call>\n{json.dumps({'name': 'f', 'arguments': {'p': value, **more}}, ensure_ascii=False)}\n</tool_call>"
    )


@pytest.mark.parametrize("case", HELD)
def test_schemas_are_held_whole(case: str) -> None:
    schema, good, bad = HELD[case]
    spec = build_constraint(ConstraintRequest(format="hermes", tools=[ConstrainedTool("f", schema)], choice="required"))
    assert spec is not None
    assert [follows(spec, call(schema, value)) for value in (good, bad)] == [True, False]


@pytest.mark.parametrize("name", FORMATS)
def test_no_format_widens_them(engine: LLGuidanceBackend, name: str) -> None:
    """Texts at random under the grammar validate, and it has no gap that JSON has not."""
    from tests.toolcall.test_forced_calls import walks

    known = {"a leap second", "digits", "a name of another script", "an odd name", "marks in a class", "draft 4", "draft 7",
             "the text of Python"}  # fmt: skip
    for case, (schema, *_) in HELD.items():
        assert not call_gaps(name, narrowed(schema)), case
        if case not in known:  # the validator reads neither of these as they are meant
            walks(engine, name, ConstrainedTool("f", schema), scaled(1))


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize(
    "bound", [{"maxLength": 300}, {"maxLength": 5000}, {"maxLength": 1_000_000}, {"minLength": 400}]
)
def test_bounds_of_long_strings_can_be_followed(engine: LLGuidanceBackend, name: str, bound: dict[str, int]) -> None:
    """The compiler's work for one step does not grow with the bound times the marks that end a value."""
    tool = ConstrainedTool("f", one({"type": "string", **bound}))
    spec = build_constraint(ConstraintRequest(format=name, tools=[tool], choice="required", parallel=False))
    assert spec is not None
    write(engine, spec, random.Random(name), ["<", "</", "ab ", "\n"], "")


def test_texts_without_marks_as_a_regex() -> None:
    marks = ("</arg_value>", "<arg_key>", "</tool_call>", "<a")
    for chosen in (marks, marks[:3], marks[:1], ("<<", "<|"), ("<", "&"), ("&", *marks[:2])):
        regex = re.compile(without_marks(chosen))
        rng = random.Random(str(chosen))
        looked_for = [mark[0] + mark[1:].split("<")[0] for mark in chosen]
        pieces = ["<", "/", "arg", "_value", ">", "tool_call>", "_key>", *marks, "x", "&"]
        for _ in range(scaled(3000)):
            text = "".join(rng.choice(pieces) for _ in range(rng.randint(0, 6)))
            assert (regex.fullmatch(text) is None) == any(mark in text for mark in looked_for), text


def test_branches_that_may_hold_together_are_not_narrowed() -> None:
    """What one branch no longer allows, the other might."""
    schema = one({"oneOf": [{"pattern": "a"}, {"minLength": 3}]})
    (branch, other) = narrowed(schema)["properties"]["p"]["oneOf"]
    assert (branch, other) == ({"pattern": "a"}, {"minLength": 3})
    base = {**BASE, "properties": {"id": {"type": "string", "pattern": "a"}}}
    overlapping = one({"oneOf": [{"$ref": "#/$defs/base"}, {"type": "object"}]}, **{"$defs": {"base": base}})
    found = narrowed(overlapping)
    assert "additionalProperties" not in json.dumps(found["properties"]["p"]) + json.dumps(found.get("$defs"))


def test_objects_are_closed_where_that_only_narrows() -> None:
    found = narrowed(
        {
            "properties": {
                "a": BASE,
                "b": {"$ref": "#/$defs/base"},
                "c": {"$ref": "#/$defs/base", "minProperties": 1},
                "d": {"$ref": "#/$defs/base", "required": ["more"]},
            },
            "$defs": {"base": BASE},
        }
    )
    assert found["additionalProperties"] is False
    assert found["properties"]["a"]["additionalProperties"] is False
    closed, opened = (found["$defs"][found["properties"][name]["$ref"].split("/")[-1]] for name in "bc")
    assert closed == {**opened, "additionalProperties": False}
    assert found["properties"]["d"]["required"] == ["id", "more"]
    assert found["properties"]["d"]["additionalProperties"] is False
    free = {"type": "object", "additionalProperties": STRING}
    assert narrowed(free) == free
    unlisted = {"type": "object", "properties": {"a": {}}, "required": ["a", "b"]}
    (pattern,) = narrowed(unlisted).pop("patternProperties")
    assert [re.search(pattern, name) is not None for name in ("a", "b", "", "ab", "c")] == [
        False,
        False,
        True,
        True,
        True,
    ]


@pytest.mark.parametrize("size", [90, 300, 900])
def test_a_long_text_is_held_like_a_short_one(size: int) -> None:
    rng = random.Random(size)
    long = "".join(rng.choice('abcdef "é') if size < 900 else rng.choice("abcdef") for _ in range(size))
    excluded = one({"type": "string", "not": {"enum": [long, "x"]}})
    named = one({"type": "object", "properties": {long: INTEGER}, "required": [long, "x"]})
    for schema, value, fits in (
        (excluded, long[:-1], True),
        (excluded, f"{long}b", True),
        (excluded, f"{long[:40]}x", True),
        (excluded, long, False),
        (named, {long: 1, "x": 2, long[:-1]: "b"}, True),
        (named, {long: "b", "x": 2}, False),
    ):
        tools = [ConstrainedTool("f", schema)]
        spec = build_constraint(ConstraintRequest(format="hermes", tools=tools, choice="required"))
        assert spec is not None
        assert follows(spec, call(schema, value)) is fits


def test_a_text_that_is_too_long_gives_up_for_itself_alone() -> None:
    long = "a" * 5_000
    root = one({"type": "string", "not": {"const": long}})
    root["properties"]["q"] = {"type": "object", "properties": {"k": STRING}}
    found = narrowed(root)["properties"]
    assert (found["p"]["not"], found["q"]["additionalProperties"]) == ({"const": long}, False)
    chain = [long[:size] for size in range(1, 80)]
    assert "not" in narrowed(one({"type": "string", "not": {"enum": chain}}))["properties"]["p"]


def test_narrowing_twice_is_narrowing_once(engine: LLGuidanceBackend) -> None:
    for schema, *_ in HELD.values():
        once = narrowed(schema)
        assert narrowed(once) == once


@pytest.mark.parametrize("count", [2000])
def test_definitions_that_refer_to_each_other_stay_small(count: int) -> None:
    links = {
        f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}, {"properties": {f"p{index}": {}}}]}
        for index in range(count)
    }
    assert len(json.dumps(narrowed(one({"$ref": "#/$defs/d0"}, **{"$defs": {**links, f"d{count}": BASE}})))) < 4_000_000


PATTERNS = {
    r"^[^\]a-c\d]$": ("]abc5", "xd\\"),
    r"^\u{1F600}|\uD83D\uDE01$": ("x", "😀😁"),
    r"^\cA\0\x41$": ("A", ""),
    r"^a{,2}$": ("aa", ""),
    r"^[\b\t-]$": ("b", "\b\t-"),
    r"^\S$": (" \u00a0\ufeff\u0085", 'a"\\é'),
    r"^[^\s]$": (" \u00a0\ufeff\u0085", 'a"\\é'),
    r"^\W$": ("a_9", "é-"),
    r"^[\D]$": ("7", "x"),
    r"^[]$": ("a", ""),
    r"^[^]$": ("", "a\n"),
    r"^(?<year>\d)\/\-$": ("", ""),
}


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_read_as_ecma_has_them(pattern: str) -> None:
    bad, good = PATTERNS[pattern]
    spec = GrammarSpec(kind="json_schema", source=json.dumps({"type": "string", "pattern": translated(pattern)}))
    assert translated(translated(pattern)) == translated(pattern)
    if pattern == "^[]$":
        return
    for char in good:
        assert follows(spec, json.dumps(char, ensure_ascii=False)), char
    for char in bad:
        assert not follows(spec, json.dumps(char, ensure_ascii=False)), char


def test_the_parser_types_values_by_what_their_schemas_speak_of() -> None:
    root = {"$defs": {"a b": INTEGER, "x/y": {"type": "boolean"}}}
    kinds = {
        "#/$defs/a%20b": "integer",
        "#/$defs/a b": "integer",
        "#/$defs/x~1y": "boolean",
    }
    for reference, kind in kinds.items():
        assert type_of({"$ref": reference}, root).kinds == {kind}
    assert type_of({"minimum": 3}, {}).kinds == {"number"}
    assert type_of({"maxLength": 3}, {}).kinds == {"string"}
    assert type_of({"minimum": 3, "maxLength": 3}, {}).kinds == frozenset()
    assert "string" not in type_of({"not": STRING}, {}).kinds


def test_narrowed_schemas_allow_no_more(engine: LLGuidanceBackend) -> None:
    """Values that the narrowed schema allows, as its own validator says, are allowed by the schema as it was."""
    rng = random.Random(0)
    for schema, *_ in HELD.values():
        before, after = (
            jsonschema_rs.validator_for(s, validate_formats=False) if ok(s) else None
            for s in (schema, narrowed(schema))
        )
        if before is None or after is None:
            continue
        for _ in range(scaled(200)):
            value = {"p": anything(rng), **({"q": anything(rng)} if rng.random() < 0.5 else {})}
            assert before.is_valid(value) or not after.is_valid(value), (schema, value)


def test_malformed_schemas_come_back() -> None:
    """What stands in a schema may be of any type; with ``auto`` nobody has looked at it."""
    rng = random.Random(1)
    odd = [None, 5, "a", True, [], {}, [1], [{}], {"a": 1}, [None], {"type": 5}, -1, 1e400, {"$ref": "#"}, {"$ref": 5}]
    words = sorted({key for schema, *_ in HELD.values() for node in nodes(schema) for key in node} | {"if", "contains"})
    for _ in range(scaled(1500)):
        schema = json.loads(json.dumps(rng.choice(list(HELD.values()))[0]))
        for _ in range(rng.randint(1, 3)):
            rng.choice(list(nodes(schema)))[rng.choice(words)] = copy.deepcopy(rng.choice(odd))
        assert isinstance(narrowed(schema), dict)
        type_of(schema, schema)
        Tool("f", schema).type_of("p")


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in list(node.values()):
            yield from nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from nodes(value)


def ok(schema: Any) -> bool:
    try:
        jsonschema_rs.validator_for(schema)
    except ValueError:
        return False
    return True


def anything(rng: random.Random, depth: int = 0) -> Any:
    plain = ["a", "b", "c1", "dog", "x", "", 0, 1, 2.5, 4, -1, None, True, 10**17, '"', "\n"]
    if depth < 2 and rng.random() < 0.4:
        if rng.random() < 0.4:
            return [anything(rng, depth + 1) for _ in range(rng.randint(0, 2))]
        keys = rng.sample(["id", "x", "kind", "name", "a", "b", "A"], rng.randint(0, 3))
        return {key: anything(rng, depth + 1) for key in keys}
    return rng.choice(plain)
