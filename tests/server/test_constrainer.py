"""What a format's calls cannot be held to is refused or reported, never silently left out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from engine.grammar.check import KILLED, CheckFailed, GrammarChecker
from engine.messages import GrammarSpec
from server.constrainer import Constrainer, UnusableSchema
from server.constraints import ConstraintPlan, OutputShape, constraint
from server.errors import Unavailable
from server.tools import Tools
from tests.cases.grammars import follows
from toolcall.constraint_formats import RAW_FORMATS
from toolcall.constraints import ConstrainedTool, ConstraintRequest, Policy

GAPS: dict[str, dict[str, Any]] = {
    "/maxProperties": {"additionalProperties": {"type": "string"}, "maxProperties": 1},
    "/patternProperties": {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
    "/properties/a/pattern": {"properties": {"a": {"type": "string", "pattern": "(^a|b$)"}}},
    "/properties/a>b": {"properties": {"a>b": {"type": "integer"}}},
}
JSON_CALL = (
    '<tool_call>\n{{"name": "f", "arguments": {{"a": "x", "b": ["q"], "pattern": "{}", "n": {}}}}}\n</tool_call>'
)
TAGGED_CALL = (
    "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=pattern>\n{}\n</parameter>\n"
    "<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>"
)
SAMPLES = {
    "date": ("2026-02-28", "2026-13-01"),
    "time": ("23:59:00.5+01:00", "24:00:00Z"),
    "date-time": ("2026-02-28T01:02:03Z", "2026-02-28 01:02"),
    "duration": ("P3DT4H", "3 days"),
    "email": ("a.b@c-d.org", "a@"),
    "hostname": ("a-1.example.org", "-a"),
    "ipv4": ("192.168.0.255", "256.1.1.1"),
    "ipv6": ("2001:db8:0:0:0:0:0:1", "2001:db8"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000", "123e4567"),
    "uri": ("https://a.b/c?d=e#f", "a b"),
}


@pytest.fixture
async def constrainer() -> AsyncIterator[Constrainer]:
    made = Constrainer()
    yield made
    await made.close()


def request(format_name: str, schema: dict[str, Any], *, strict: bool) -> ConstraintRequest:
    tool = ConstrainedTool("f", {"type": "object", **schema}, strict=strict)
    return ConstraintRequest(format=format_name, tools=[tool], choice="required")


@pytest.mark.parametrize("pointer", GAPS)
async def test_a_gap_of_the_format(constrainer: Constrainer, pointer: str) -> None:
    lax = await constrainer.constrain(request("qwen3_coder", GAPS[pointer], strict=False))
    assert lax.spec is not None
    assert len(lax.relaxations) == 1
    assert f"tools[0].function.parameters{pointer} is not enforced" in lax.relaxations[0]
    with pytest.raises(UnusableSchema) as refused:
        await constrainer.constrain(request("qwen3_coder", GAPS[pointer], strict=True))
    assert refused.value.pointer == pointer


async def test_names_that_come_twice_do_not_count_twice(constrainer: Constrainer) -> None:
    """No grammar keeps a free name from coming again, so that only one of them is counted on."""
    free = {"properties": {"m": {"type": "object", "additionalProperties": {}, "minProperties": 2}}}
    found = await constrainer.constrain(request("hermes", free, strict=False))
    assert ["/properties/m/minProperties is not enforced" in note for note in found.relaxations] == [True]
    with pytest.raises(UnusableSchema) as refused:
        await constrainer.constrain(request("hermes", free, strict=True))
    assert refused.value.pointer == "/properties/m/minProperties"
    for more in ({"required": ["a"]}, {"minProperties": 1}):
        held = {"properties": {"m": {**free["properties"]["m"], **more}}}
        assert not (await constrainer.constrain(request("hermes", held, strict=True))).relaxations
    document = ConstraintRequest(format="hermes", document={"type": "object", **free})
    assert len((await constrainer.constrain(document)).relaxations) == 1


@pytest.mark.parametrize("pointer", GAPS)
@pytest.mark.parametrize("format_name", ["hermes", "pythonic"])
async def test_formats_with_json_have_none(constrainer: Constrainer, format_name: str, pointer: str) -> None:
    assert not (await constrainer.constrain(request(format_name, GAPS[pointer], strict=True))).relaxations


async def test_every_gap_is_reported(constrainer: Constrainer) -> None:
    schema = {"properties": {"a>b": {}, "a": {"type": "string", "pattern": "(^a|b$)"}}, "patternProperties": {"^x": {}}}
    found = await constrainer.constrain(request("qwen3_coder", schema, strict=False))
    assert [note.split(" is not")[0].partition("parameters")[2] for note in found.relaxations] == [
        "/patternProperties",
        "/properties/a>b",
        "/properties/a/pattern",
    ]


BEYOND: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "several keywords": (
        {"type": "array", "uniqueItems": True, "contains": {"const": "x"}, "items": {"type": "string", "not": {"const": "y"}}},
        ("/uniqueItems",),
    ),
    "a format": ({"type": "array", "items": {"type": "string", "format": "iri"}}, ("/items/format",)),
    "branches that overlap": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ("/oneOf",)),
    "numbers too large": ({"type": "number", "minimum": 1e20, "maximum": 1e25}, ("/maximum", "/minimum")),
    "too many digits": ({"type": "number", "multipleOf": 1e-20}, ("/multipleOf",)),
}  # fmt: skip


@pytest.mark.parametrize("format_name", ["hermes", "qwen3_coder"])
@pytest.mark.parametrize("case", BEYOND)
async def test_what_the_compiler_does_not_know_is_all_that_is_lost(
    constrainer: Constrainer, case: str, format_name: str
) -> None:
    """The rest of the schema holds, and each loss is reported with its place."""
    schema, lost = BEYOND[case]
    whole = {"properties": {"n": {"type": "integer", "maximum": 5}, "x": schema, "not": {}}, "required": ["n"]}
    found = await constrainer.constrain(request(format_name, whole, strict=False))
    assert found.spec is not None
    assert {note.split(" is not enforced: ")[0].partition("parameters")[2] for note in found.relaxations} == {
        f"/properties/x{place}" for place in lost
    }
    call = {
        "hermes": '<tool_call>\n{{"name": "f", "arguments": {{"n": {}}}}}\n</tool_call>',
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=n>\n{}\n</parameter>\n</function>\n</tool_call>",
    }[format_name]
    assert [follows(found.spec, call.format(n)) for n in (5, 6)] == [True, False]
    with pytest.raises(UnusableSchema) as refused:
        await constrainer.constrain(request(format_name, whole, strict=True))
    assert refused.value.pointer.startswith("/properties/x")


@pytest.mark.parametrize(
    "schema",
    [{"type": "array"}, {"type": "string"}, {"enum": ["a"]}, {"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}],
)
async def test_forced_arguments_are_an_object(constrainer: Constrainer, schema: dict[str, Any]) -> None:
    tool = ConstrainedTool("f", schema)
    with pytest.raises(UnusableSchema, match="an object"):
        await constrainer.constrain(ConstraintRequest(format="hermes", tools=[tool], choice="required"))
    if schema in ({"type": "array"}, {"type": "string"}):
        assert (await constrainer.constrain(ConstraintRequest(format="hermes", tools=[tool]))).spec is not None


async def test_what_is_not_the_gap_is_enforced(constrainer: Constrainer) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": "^x+$"}, "b": {}}, "maxProperties": 1}
    found = await constrainer.constrain(request("qwen3_coder", schema, strict=False))
    assert found.spec is not None
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert [follows(found.spec, call.format(text)) for text in ("xx", "y")] == [True, False]


LOOKING: dict[str, Any] = {
    "properties": {
        "a": {"type": "string", "pattern": r"^(?=.*\d).+$"},
        "b": {"type": "array", "items": {"type": "string", "pattern": r"(x)\1"}},
        "pattern": {"type": "string", "pattern": "^[0-9]+$"},
        "n": {"type": "integer", "maximum": 5},
    },
    "required": ["a", "n"],
}
LOST = ("/properties/a/pattern", "/properties/b/items/pattern")


@pytest.mark.parametrize(("format_name", "call"), [("hermes", JSON_CALL), ("qwen3_coder", TAGGED_CALL)])
async def test_a_pattern_beyond_the_compiler_is_all_that_is_lost(
    constrainer: Constrainer, format_name: str, call: str
) -> None:
    found = await constrainer.constrain(request(format_name, LOOKING, strict=False))
    assert found.spec is not None
    assert [note.split(" is not enforced: ")[0] for note in found.relaxations] == [
        f"tools[0].function.parameters{pointer}" for pointer in LOST
    ]
    assert all("supported" in note for note in found.relaxations)
    assert [follows(found.spec, call.format(*values)) for values in (("7", 5), ("x", 5), ("7", 6))] == [
        True,
        False,
        False,
    ]


async def test_a_pattern_beyond_the_compiler_is_named_to_who_asks_for_strictness(constrainer: Constrainer) -> None:
    with pytest.raises(UnusableSchema) as refused:
        await constrainer.constrain(request("hermes", LOOKING, strict=True))
    assert refused.value.pointer == LOST[0]


async def test_what_is_left_without_the_pattern_may_be_relaxed_too(constrainer: Constrainer) -> None:
    schema = {"properties": {**LOOKING["properties"], "u": {"type": "array", "uniqueItems": True}}}
    found = await constrainer.constrain(request("hermes", schema, strict=False))
    assert len(found.relaxations) == 3
    assert "/properties/u/uniqueItems is not enforced" in found.relaxations[-1]
    assert found.spec is not None
    assert not follows(found.spec, JSON_CALL.format("7", 6))


async def test_a_document_loses_a_pattern_alone(constrainer: Constrainer) -> None:
    asked = ConstraintRequest(format="hermes", document={"type": "object", **LOOKING})
    found = await constrainer.constrain(asked)
    assert found.spec is not None
    assert [
        note.startswith(f"response_format.json_schema.schema{at}") for note, at in zip(found.relaxations, LOST)
    ] == [
        True,
        True,
    ]
    assert [follows(found.spec, json.dumps({"a": "x", "n": n})) for n in (5, 6)] == [True, False]


@pytest.mark.parametrize(("policy", "count"), [("on", 1), ("strict-only", 0), ("off", 0)])
async def test_tools_that_are_not_constrained_are_not_reported(
    constrainer: Constrainer, policy: Policy, count: int
) -> None:
    lax = ConstrainedTool("f", {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}})
    strict = ConstrainedTool("g", {"type": "object", "properties": {"n": {"type": "integer"}}}, strict=True)
    found = await constrainer.constrain(ConstraintRequest(format="hermes", tools=[lax, strict], policy=policy))
    assert len(found.relaxations) == count
    assert (found.spec is None) == (policy == "off")
    forced = ConstraintRequest(format="hermes", tools=[lax, strict], policy=policy, choice="required")
    assert len((await constrainer.constrain(forced)).relaxations) == 1


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [
        (r"[\w-.]+", "a-.", "a b"),
        (r"\Aab\Z", "ab", "abc"),
        ("{a}", "{a}", "a"),
        (r"\uD83D\uDE00", "😀", "x"),
        (r"\d", "٣", "x"),
    ],
)
async def test_a_clients_regex_may_be_of_another_dialect(
    constrainer: Constrainer, regex: str, good: str, bad: str
) -> None:
    spec = await constrainer.check(GrammarSpec(kind="regex", source=regex), "regex")
    assert [follows(spec, text) for text in (good, bad)] == [True, False]


@pytest.mark.parametrize("regex", ["(", "[a", "[z-a]", "a{2,1}", "\\", "(?<n"])
async def test_a_regex_of_no_dialect_is_refused(constrainer: Constrainer, regex: str) -> None:
    with pytest.raises(UnusableSchema):
        await constrainer.check(GrammarSpec(kind="regex", source=regex), "regex")


async def test_a_check_that_nobody_can_make_is_no_fault_of_the_client() -> None:
    class Doomed(GrammarChecker):
        async def check(self, spec: GrammarSpec) -> None:
            raise CheckFailed(KILLED)

    plan = ConstraintPlan(format="hermes", tools=Tools(), shape=OutputShape(document={"type": "object"}))
    with pytest.raises(Unavailable, match="was killed") as failed:
        await constraint(plan, Constrainer(Doomed()))
    assert failed.value.status == 503


@pytest.mark.parametrize("name", RAW_FORMATS)
@pytest.mark.parametrize("format_name", ["qwen3_coder", "glm45", "gemma4"])
async def test_formats_of_values_without_quotes(constrainer: Constrainer, format_name: str, name: str) -> None:
    schema = {"properties": {"a": {"type": "string", "format": name}}, "required": ["a"]}
    found = await constrainer.constrain(request(format_name, schema, strict=True))
    assert found.spec is not None
    assert not found.relaxations
    call = {
        "qwen3_coder": "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>",
        "glm45": "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>",
        "gemma4": '<|tool_call>call:f{{a:<|"|>{}<|"|>}}<tool_call|>',
    }[format_name]
    good, bad = SAMPLES[name]
    assert [follows(found.spec, call.format(text)) for text in (good, bad)] == [True, False]
    as_json = GrammarSpec(kind="json_schema", source=json.dumps({"type": "string", "format": name}))
    assert [follows(as_json, json.dumps(text)) for text in (good, bad)] == [True, False]


async def test_a_format_that_the_compiler_does_not_know_is_reported(constrainer: Constrainer) -> None:
    for format_name in ("hermes", "qwen3_coder"):
        schema = {"properties": {"a": {"type": "string", "format": "iri"}}}
        found = await constrainer.constrain(request(format_name, schema, strict=False))
        (note,) = found.relaxations
        assert "/properties/a/format is not enforced" in note


async def test_a_pattern_beyond_the_compiler_leaves_a_call(constrainer: Constrainer) -> None:
    schema = {"properties": {"a": {"type": "string", "pattern": r"^(?=.*\d).+$"}}}
    for format_name in ("qwen3_coder", "gemma4", "hermes"):
        found = await constrainer.constrain(request(format_name, schema, strict=False))
        assert found.spec is not None
        assert len(found.relaxations) == 1


async def test_listed_strings_leave_the_other_types_of_a_value(constrainer: Constrainer) -> None:
    schema = {"properties": {"a": {"anyOf": [{"enum": ["auto"]}, {"type": "integer"}]}}, "required": ["a"]}
    found = await constrainer.constrain(request("qwen3_coder", schema, strict=True))
    assert found.spec is not None
    call = "<tool_call>\n<function=f>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    assert [follows(found.spec, call.format(text)) for text in ("auto", "5", "x", "5.5")] == [True, True, False, False]
