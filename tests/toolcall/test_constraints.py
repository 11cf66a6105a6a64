"""What a grammar lets any model write, its format's parser reads as calls that validate."""

from __future__ import annotations

import json
import os
import random

import jsonschema
import numpy as np
import pytest

import toolcall
from engine.grammar.interface import GrammarError
from engine.grammar.source import MAX_SOURCE_BYTES
from tests.engine.grammar.vocabulary import EOS, TOKENS, VOCAB_SIZE, backend, decode, encode
from toolcall.constraint_styles import STYLES
from toolcall.constraints import ConstrainedTool, ConstraintRequest, build_constraint, call_gaps
from toolcall.registry import get_reasoning
from toolcall.schema_parts import MAX_GRAMMAR_BYTES

WORDS = (VOCAB_SIZE + 31) // 32
WALKS = 4 * int(os.environ.get("CALLGATE_TEST_SCALE", "1"))
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
        "where": {"$ref": "#/$defs/place"},
        "loud": {"type": "boolean"},
        "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["city", "days"],
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]}},
}
TOOLS = [
    {"name": "get_weather", "parameters": WEATHER},
    {"name": "ping", "parameters": None},
    {
        "name": "notes-add",
        "parameters": {"type": "object", "properties": {"text": {"type": "string", "minLength": 2, "maxLength": 9}}},
    },
]
CONSTRAINED = [ConstrainedTool(tool["name"], tool["parameters"]) for tool in TOOLS]
CLOSERS = [token for token, text in enumerate(TOKENS) if text in (b'"', b"<", b"}", b"]", b">", b")", b"/", b'": "')]
LETTERS = [token for token, text in enumerate(TOKENS) if text.isalnum() and len(text) == 1]


@pytest.fixture(scope="module")
def engine():
    return backend()


def write(engine, spec, seed: int, end: bytes = b"", limit: int = 1500) -> tuple[str, bool]:
    """A random model's text under a grammar, and whether it came to its end. ``end``: what closes a raw value."""
    rng, matcher, out = random.Random(seed), engine.matcher(engine.compile(spec)), []
    mask = np.zeros(WORDS, dtype=np.int32)
    while len(out) < limit:
        tokens = matcher.forced_tokens()
        if not tokens:
            assert matcher.fill_mask(mask)
            bits = np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]
            tokens = [choose(rng, set(np.nonzero(bits)[0].tolist()), out, end)]
        for token in tokens:
            assert matcher.accept(token)
        out += tokens
        if EOS in tokens:
            return decode(out), True
        if matcher.terminated:
            return decode(out), True
    return decode(out), False


def choose(rng: random.Random, allowed: set[int], out: list[int], end: bytes) -> int:
    length = len(out)
    written = b"".join(TOKENS[token] for token in out[-len(end) - 1 :])
    begun = next((size for size in range(len(end) - 1, 0, -1) if written.endswith(end[:size])), 0)
    if end and end[begun] in allowed and rng.random() < (0.95 if begun else 0.3):
        return end[begun]
    if EOS in allowed and (length > 200 or rng.random() < 0.4):
        return EOS
    closing = [token for token in CLOSERS if token in allowed]
    if closing and rng.random() < (0.3 if length < 300 else 0.9):
        return rng.choice(closing)
    letters = [token for token in LETTERS if token in allowed]
    return rng.choice(letters if letters and rng.random() < 0.7 else sorted(allowed))


def read(text: str, format_name: str, reasoning: str | None = None, **options):
    return toolcall.parse(text, TOOLS, format=format_name, reasoning=reasoning and get_reasoning(reasoning), **options)


def check_calls(calls) -> None:
    schemas = {tool["name"]: tool["parameters"] or {"type": "object", "maxProperties": 0} for tool in TOOLS}
    for call in calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


NAMES = [form.name for form in toolcall.list_formats() if form.name in STYLES]


def test_every_format_has_a_style_or_is_known_to_fall_back():
    missing = {form.name for form in toolcall.list_formats()} - set(STYLES)
    assert missing <= {"minimax_m3", "muse_glimmer"}
    assert len(NAMES) >= 4


@pytest.mark.parametrize("name", NAMES)
def test_forced_calls_are_read_back_and_validate(engine, name):
    spec = build_constraint(ConstraintRequest(format=name, tools=CONSTRAINED, choice="required"))
    arguments, thought = STYLES[name].arguments, STYLES[name].thought
    end = (arguments.quote + arguments.parameter.split("{value}")[1]).encode() if arguments else b""
    end = thought[1].encode() if thought else end
    finished = 0
    for seed in range(WALKS):
        text, whole = write(engine, spec, seed, end)
        if not whole:
            continue
        finished += 1
        parsed = read(text, name)
        assert parsed.tool_calls, text
        assert not (parsed.content or "").strip(), text
        check_calls(parsed.tool_calls)
        assert STYLES[name].strays or not any(call.rescued for call in parsed.tool_calls)
    assert finished >= WALKS // 2


@pytest.mark.parametrize("name", NAMES)
def test_a_single_call_where_parallel_calls_are_off(engine, name):
    spec = build_constraint(ConstraintRequest(format=name, tools=CONSTRAINED[1:2], choice="required", parallel=False))
    thought = STYLES[name].thought
    text, whole = write(engine, spec, 1, thought[1].encode() if thought else b"")
    assert whole
    calls = read(text, name).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("ping", "{}")]


@pytest.mark.parametrize("name", [name for name in NAMES if STYLES[name].thought is None])
def test_reasoning_may_come_first(engine, name):
    request = ConstraintRequest(format=name, tools=CONSTRAINED[1:2], choice="required", parallel=False)
    for reasoning, written in (("optional", "<think>ponder {</think>\n"), ("open", "ponder {</think>\n")):
        spec = build_constraint(
            ConstraintRequest(
                **{**fields(request), "reasoning": reasoning, "reasoning_markers": ("<think>", "</think>")}
            )
        )
        for call, allowed in ((written_call(name, 1), True), ("No.", False)):
            matcher = engine.matcher(engine.compile(spec))
            for token in encode(written):
                assert matcher.accept(token), (reasoning, written)
            assert all(map(matcher.accept, encode(call))) == allowed, (reasoning, call)


def written_call(name: str, tool: int) -> str:
    """A call without arguments in this format, as its models write it."""
    style = STYLES[name]
    none = "" if style.arguments else "{}"
    call = style.call.replace("{name}", TOOLS[tool]["name"]).replace("{index}", "0").replace("{args}", none)
    return style.opening + call + style.closing


def fields(request: ConstraintRequest) -> dict:
    return {name: getattr(request, name) for name in ConstraintRequest.__dataclass_fields__}


@pytest.mark.parametrize("name", NAMES)
def test_auto_is_free_text_until_the_native_call_opens(engine, name):
    spec = build_constraint(ConstraintRequest(format=name, tools=CONSTRAINED, rescue=False))
    mask = np.zeros(WORDS, dtype=np.int32)
    matcher = engine.matcher(engine.compile(spec))
    for token in encode("It is [12] {warm}, see (a, b). " if not spec.triggers_at_start else " \n"):
        assert not matcher.fill_mask(mask)
        assert matcher.accept(token)
    style = STYLES[name]
    opening = (style.opening + style.call.split("{args}")[0]).replace("{name}", "ping").replace("{index}", "0")
    for token in encode(opening):
        assert matcher.accept(token), opening
    assert matcher.fill_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert 0 < bits.sum() < VOCAB_SIZE


def test_auto_constrains_a_bare_call_of_a_declared_tool_only(engine):
    spec = build_constraint(ConstraintRequest(format="hermes", tools=CONSTRAINED))
    mask = np.zeros(WORDS, dtype=np.int32)
    for text, held in (
        ('```json\n{\n  "name": "ping",\n  "arguments": ', True),
        ('{"name": "other", "arguments": ', False),
        ('{"name": "ping", "age": ', False),
    ):
        matcher = engine.matcher(engine.compile(spec))
        for token in encode(text):
            assert matcher.accept(token)
        assert matcher.fill_mask(mask) is held, text


def test_a_document_or_a_call(engine):
    document = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    spec = build_constraint(ConstraintRequest(format="hermes", tools=CONSTRAINED, document=document))
    kinds = set()
    for seed in range(200):
        text, whole = write(engine, spec, seed)
        if not whole:
            continue
        parsed = read(text, "hermes")
        check_calls(parsed.tool_calls)
        if not parsed.tool_calls:
            jsonschema.validate(json.loads(parsed.content), document)
        kinds.add(bool(parsed.tool_calls))
    assert kinds == {True, False}


@pytest.mark.parametrize(
    ("policy", "strict", "constrained"),
    [("on", False, True), ("strict-only", False, False), ("strict-only", True, True), ("off", True, False)],
)
def test_the_policy_decides_what_auto_enforces(policy, strict, constrained):
    tools = [ConstrainedTool("ping", None, strict=strict)]
    spec = build_constraint(ConstraintRequest(format="hermes", tools=tools, policy=policy))
    assert (spec is not None) is constrained
    forced = build_constraint(ConstraintRequest(format="hermes", tools=tools, policy=policy, choice="required"))
    assert forced is not None


def one(schema, properties=None, **more):
    return {"type": "object", "properties": {"p": schema, **(properties or {})}, "required": ["p"], **more}


ARGUMENTS = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WHOLE = ("qwen3_coder", "glm45", "gemma4")
"""Formats that write parameters one by one and nothing else."""
HARD = {
    "root $ref": ({"$ref": "#/$defs/args", "$defs": {"args": ARGUMENTS}}, ()),
    "root allOf": ({"allOf": [ARGUMENTS]}, ()),
    "root anyOf": ({"anyOf": [ARGUMENTS, {"type": "object", "required": ["m"]}]}, ()),
    "root anyOf of two types": ({"anyOf": [one({"type": "string"}), one({"type": "integer"})]}, WHOLE),
    "names by a pattern": ({**ARGUMENTS, "patternProperties": {"^x": {}}}, WHOLE),
    "no type": ({"properties": {"n": {"minimum": 5}}, "required": ["n"]}, ()),
    "not listed": ({"properties": {"n": {"type": "integer"}}, "required": ["n", "m"]}, ()),
    "others": ({"type": "object", "additionalProperties": {"type": "integer"}}, ()),
    "at least one": ({**ARGUMENTS, "required": [], "minProperties": 1}, ()),
    "at most one": ({"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}, ()),
    "enum or null": (one({"anyOf": [{"type": "string", "enum": ["aa", "bb"]}, {"type": "null"}]}), ()),
    "pattern or integer": (one({"oneOf": [{"type": "string", "pattern": "^[a-z]{3}$"}, {"type": "integer"}]}), ()),
    "two types": (one({"type": ["string", "integer"], "minLength": 3, "maxLength": 6}), ()),
    "string allOf": (one({"type": "string", "allOf": [{"minLength": 4}]}), ()),
    "two patterns": (one({"type": "string", "allOf": [{"pattern": "^a"}, {"pattern": "b$"}]}), WHOLE),
    "reference to a property": (one({"$ref": "#/properties/q"}, properties={"q": {"minimum": 3}}), ()),
    "reference beside a bound": (
        one({"$ref": "#/$defs/s", "maxLength": 3}, **{"$defs": {"s": {"type": "string", "minLength": 2}}}),
        (),
    ),
    "recursion": (one({"type": "array", "items": {"$ref": "#"}, "maxItems": 2}), ()),
    "pattern and length": (one({"type": "string", "pattern": "^[a-z]*$", "minLength": 2, "maxLength": 3}), ()),
    "escaped anchor": (one({"type": "string", "pattern": r"^[a-z]\$"}), ()),
    "anchor inside": (one({"type": "string", "pattern": "^(a|b$)$"}), WHOLE),
    "odd literals": (one({"enum": ['a"b', "c\nd", "</parameter>", " e ", "", "\\n", "it's", "null", "5", "\x7f"]}), ()),
    "odd keys": ({"properties": {"a key": {"type": "string"}, "x-y": {}, "{value}": {}, "class": {}}}, ()),
    "a mark in a key": (one({}, properties={"a<b": {}}), WHOLE[:2]),
}


@pytest.mark.parametrize("name", ["hermes", "pythonic", *WHOLE])
@pytest.mark.parametrize("case", HARD)
def test_a_schema_is_enforced_or_its_gap_is_known(engine, name, case):
    schema, gaps = HARD[case]
    tool = ConstrainedTool("f", schema)
    assert bool(call_gaps(name, tool.schema)) == (name in gaps)
    if name in gaps:
        return
    spec = build_constraint(ConstraintRequest(format=name, tools=[tool], choice="required", parallel=False))
    style = STYLES[name].arguments
    end = (style.quote + style.parameter.split("{value}")[1]).encode() if style else b""
    finished = 0
    for seed in range(WALKS):
        text, whole = write(engine, spec, seed, end, limit=600)
        if not whole:
            continue
        finished += 1
        (call,) = toolcall.parse(text, [{"name": "f", "parameters": schema}], format=name).tool_calls
        jsonschema.validate(json.loads(call.arguments), schema)
    assert finished


REF = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    "schema",
    [
        one(REF, **{"$defs": {"a": {"anyOf": [REF] * 20}}}),
        one({"$ref": "#/properties/p"}),
        one({"anyOf": [{"type": "string", "pattern": f"^a{index}$"} for index in range(500)]}),
        {
            "properties": {f"p{index}": {**REF, "title": str(index)} for index in range(2000)},
            "$defs": {"a": {"type": "integer"}, **{f"d{index}": {"type": "string"} for index in range(4000)}},
        },
    ],
    ids=["itself", "circle", "wide", "definitions"],
)
def test_references_and_unions_without_end_stay_small(schema):
    tool = ConstrainedTool("f", schema)
    spec = build_constraint(ConstraintRequest(format="qwen3_coder", tools=[tool], choice="required"))
    assert len(spec.source) < 2 * MAX_GRAMMAR_BYTES
    assert MAX_GRAMMAR_BYTES == MAX_SOURCE_BYTES


@pytest.mark.parametrize("odd", [{"properties": None, "required": ["a"]}, {"properties": {"a": {}}, "required": [{}]}])
def test_an_odd_schema_is_left_to_the_compiler(odd):
    assert ConstrainedTool("f", odd).schema["type"] == "object"


def test_eighty_tools_compile(engine):
    tools = [ConstrainedTool(f"tool_{index}", WEATHER) for index in range(80)]
    spec = build_constraint(ConstraintRequest(format="hermes", tools=tools))
    assert engine.compile(spec)


def test_a_clients_own_compiler_options_are_not_passed_on(engine):
    schema = {
        "x-guidance": {"lenient": True},
        "type": "object",
        "properties": {"a": {"type": "array", "uniqueItems": True}},
    }
    spec = build_constraint(ConstraintRequest(format="hermes", tools=[ConstrainedTool("f", schema)], choice="required"))
    with pytest.raises(GrammarError):
        engine.compile(spec)


@pytest.mark.parametrize(
    "text", ['{"name": "ping", "arguments": {}}', '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>']
)
def test_layout_of_a_forced_call_is_no_choice(engine, text):
    """What is sampled: how the call opens, which tool, and the last mark, which a token may join with what follows."""
    matcher = engine.matcher(
        engine.compile(build_constraint(ConstraintRequest(format="hermes", tools=CONSTRAINED, choice="required")))
    )
    sampled, rest = [], text.encode()
    while rest:
        forced = matcher.forced_tokens()
        tokens = forced or [rest[0]]
        sampled += [] if forced else [chr(rest[0])]
        written = b"".join(TOKENS[token] for token in tokens)
        assert rest.startswith(written)
        assert all(matcher.accept(token) for token in tokens)
        rest = rest[len(written) :]
    assert sampled in ([text[0], "p"], [text[0], "p", text[-1]])
