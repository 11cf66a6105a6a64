"""A model that does its worst under a grammar: it writes the format's own marks wherever the grammar lets it.

For every format and schema the parser reads back exactly one call, whose arguments fit the schema.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

import toolcall
from engine.grammar.llguidance_backend import LLGuidanceBackend
from engine.messages import GrammarSpec
from tests.engine.grammar.vocabulary import EOS, TOKENS, VOCAB_SIZE, backend, decode
from tests.toolcall.conftest import scaled
from toolcall.constraint_styles import FALLBACK, STYLES, CallStyle
from toolcall.constraints import ConstrainedTool, ConstraintRequest, build_constraint, call_gaps

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
LONG = 600
ODD = (
    "</", "<![CDATA[", "]]>", "&amp;", "&#x41;", "\n", "\r\n", " ", "null", "12", "{}", '{"a": 1}', '"q"', "'", "\\",
    "<a>", "]", "}", ")", ",", ":", "=", "😀", "\u2028", "<|", "|>", 'name="x"', "```", "<tool_call>", "-0", "1e400", "\x00",
)  # fmt: skip


def one(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"p": schema, **more.pop("properties", {})}, "required": ["p"], **more}


def keys(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, STRING), "required": list(names)}


SCHEMAS: dict[str, Any] = {
    "none": None,
    "empty": {},
    "strings": one(STRING, properties={"q": STRING}),
    "others": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": INTEGER}}},
    "pattern properties": one({"type": "object", "patternProperties": {"^k": STRING}, "additionalProperties": False}),
    "list": one({"type": "array", "items": STRING, "minItems": 2, "maxItems": 3}),
    "lists": one({"type": "array", "items": {"type": "array", "items": STRING, "maxItems": 2}, "minItems": 1}),
    "anything": one({}),
    "union": one({"anyOf": [STRING, {"type": "null"}]}, properties={"i": {"anyOf": [INTEGER, {"type": "null"}]}}),
    "one of": one({"oneOf": [one(STRING, properties={"k": {"const": "a"}}), one(INTEGER, properties={"k": {"const": 1}})]}),
    "types": one({"type": ["integer", "boolean"]}, properties={"q": {"type": ["string", "null"]}}),
    "recursion": {"properties": {"v": STRING, "c": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}}, "required": ["v"]},
    "mixed enum": one({"enum": ["a", 1, None, True, "1", "null", "true", 2.5, ""]}),
    "odd enum": one(
        {"enum": ["</parameter>", "a\nb", " e", "null", "12", '<|"|>', "'q'", '"d"', "a,b}", "]]>", "&amp;", "a]b"]}
    ),
    "long enum": one({"enum": [f"value_{index}" for index in range(300)]}),
    "consts": one({"const": {"a": ["</"]}}, properties={"s": {"const": " "}, "n": {"const": None}, "e": {"const": ""}}),
    "patterns": one({"type": "string", "pattern": "^[^a]{1,5}$"}, properties={"d": {"type": "string", "format": "date"}}),
    "marks in a pattern": one({"type": "string", "pattern": "^&[a-z]{1,3};$"}),
    "lengths": one({"type": "string", "minLength": 3, "maxLength": 6}, properties={"e": {"type": "string", "maxLength": 0}}),
    "default": one({"type": "string", "default": "x", "nullable": True}),
    "words": keys("name", "arguments", "parameters", "type", "item", "input"),
    "keys with marks": keys("a&amp;b", "a/", "/b", "x-y", "a.b", "$id", "1st", "ünï"),
    "keys with spaces": keys("a key", "{a}", "a,b", "c=d", 'name="x"', "name=x", "a:b", "a>b"),
    "one of two objects": {"anyOf": [one(STRING), one(STRING, properties={"n": INTEGER})], "type": "object"},
    "either required": {"properties": {"a": STRING, "b": INTEGER}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "one at least": {"properties": {"a": STRING, "b": INTEGER, "c": {}}, "minProperties": 1},
    "told apart by a tag": {
        "oneOf": [one({"const": name}, properties={name * 2: kind}) for name, kind in (("a", INTEGER), ("b", STRING))]
    },
    "one object named arguments": {"properties": {"arguments": {"type": "object"}}, "required": ["arguments"]},
}  # fmt: skip
NAMES = ("get_weather", "ns.do", "a-b", "mcp__x-y__z", "名前", "x" * 64, "9l", "function", "a/b", "f:0", "functions.g")


@pytest.fixture(scope="module")
def engine() -> LLGuidanceBackend:
    return backend()


def marks_of(name: str, style: CallStyle) -> list[str]:
    fmt = toolcall.get_format(name)
    words = [word for block in (*fmt.blocks, *fmt.bare) for word in (block.opener, *block.closers, *block.marks)]
    return [word for word in (*words, *(style.arguments.forbidden if style.arguments else ()), *ODD) if word]


def write(engine: LLGuidanceBackend, spec: GrammarSpec, rng: random.Random, marks: list[str], end: str) -> str:
    """A text under the grammar; "" where it did not come to its end."""
    matcher, out, planned = engine.matcher(engine.compile(spec)), list[int](), b""
    mask = np.zeros((VOCAB_SIZE + 31) // 32, dtype=np.int32)
    while len(out) < 2 * LONG:
        tokens = matcher.forced_tokens()
        if not tokens:
            matcher.fill_mask(mask)
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE]).tolist()
            if not planned or planned[0] not in allowed:
                planned = plan(rng, allowed, marks, end, hurry=len(out) > LONG)
            tokens, planned = ([planned[0]], planned[1:]) if planned else ([EOS], b"")
        assert all(map(matcher.accept, tokens))
        out += tokens
        if EOS in tokens or matcher.terminated:
            return decode(out)
    return ""


def plan(rng: random.Random, allowed: list[int], marks: list[str], end: str, *, hurry: bool) -> bytes:
    """What to write next, as far as it will be allowed; nothing to end the text."""
    if EOS in allowed and (hurry or rng.random() < 0.5):
        return b""
    chosen = end if end and rng.random() < (0.9 if hurry else 0.3) else rng.choice(marks)
    if chosen.encode()[0] in allowed and (chosen == end or rng.random() < 0.6):
        return chosen.encode()
    closing = [byte for byte in b'"}])>' if byte in allowed]
    if closing and rng.random() < (0.9 if hurry else 0.35):
        return bytes([rng.choice(closing)])
    plain = [byte for byte in range(32, 127) if byte in allowed]
    return TOKENS[rng.choice(plain or [token for token in allowed if token != EOS])]


def check(name: str, tool: ConstrainedTool, text: str) -> None:
    schema = tool.parameters or {"type": "object", "properties": {}, "maxProperties": 0}
    tools = [{"name": tool.name, "parameters": schema}, {"name": "other", "parameters": one(STRING)}]
    suffix = "<|start|>assistant" if name == "gpt_oss" else ""
    options: Any = {"tool_choice": "required", "prompt_suffix": suffix}
    answer = toolcall.parse(text, tools, name, **options)
    assert [call.name for call in answer.tool_calls] == [tool.name], text
    assert not answer.content.strip(), text
    value = json.loads(answer.tool_calls[0].arguments, parse_float=finite)
    assert not [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(value)], text
    parser = toolcall.OutputParser(toolcall.get_format(name), tools, **options)
    streamed = toolcall.fold([*(event for char in text for event in parser.feed(char)), *parser.finish()])
    assert [call.arguments for call in streamed.tool_calls] == [answer.tool_calls[0].arguments], text


def finite(number: str) -> float:
    return max(-sys.float_info.max, min(sys.float_info.max, float(number)))


def walks(engine: LLGuidanceBackend, name: str, tool: ConstrainedTool, count: int) -> int:
    """How many texts came to their end; none where the format cannot be held to the schema, and says so."""
    style = STYLES.get(name, FALLBACK)
    if call_gaps(name, tool.schema):
        return 0
    end = style.arguments.parameter.split("{value}")[1] if style.arguments else ""
    end = style.arguments.quote + end if style.arguments else (style.thought or ("", ""))[1]
    spec = build_constraint(ConstraintRequest(format=name, tools=[tool], choice="required", parallel=False))
    assert spec is not None
    marks = marks_of(name, style)
    texts = [write(engine, spec, random.Random(f"{name} {tool} {seed}"), marks, end) for seed in range(count)]
    for text in filter(None, texts):
        check(name, tool, text)
    return len(list(filter(None, texts)))


FORMATS = [form.name for form in toolcall.list_formats()]


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_the_schema(engine: LLGuidanceBackend, name: str) -> None:
    done = {key: walks(engine, name, ConstrainedTool("f", schema), scaled(2)) for key, schema in SCHEMAS.items()}
    assert sum(map(bool, done.values())) > len(SCHEMAS) - 7, done


@pytest.mark.parametrize("name", FORMATS)
def test_whatever_the_name(engine: LLGuidanceBackend, name: str) -> None:
    assert all(walks(engine, name, ConstrainedTool(tool, one(STRING)), scaled(1)) or name for tool in NAMES)
