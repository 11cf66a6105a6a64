"""Text becomes JSON by the schema: a string wins where allowed, text that fits no type stays text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolcall.json_text import is_object
from toolcall.schema import ParamType, SchemaNode, Tool, ToolSet, kinds_of, to_json
from toolcall.syntax.nested import nested_json

NULLABLE_INT = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
NULLABLE_STRING = {"type": ["string", "null"]}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "null", "null"),
        ({"type": "string"}, "007", "007"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, " x\n", " x\n"),
        (NULLABLE_STRING, "null", None),
        (NULLABLE_STRING, "None", "None"),
        (NULLABLE_STRING, "10001", "10001"),
        (NULLABLE_INT, "null", None),
        (NULLABLE_INT, "3", 3),
        ({"type": "integer"}, "007", 7),
        ({"type": "integer"}, "-0", 0),
        ({"type": "integer"}, "+5", 5),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "1e3", 1000),
        ({"type": "integer"}, "-1.5E+1", -15),
        ({"type": "integer"}, "1e-3", "1e-3"),
        ({"type": "integer"}, "1e99", "1e99"),
        ({"type": "integer"}, "2031-02-03", "2031-02-03"),
        ({"type": "integer"}, "1.5", "1.5"),
        ({"type": "integer"}, "inf", "inf"),
        ({"type": "integer"}, "9" * 300, int("9" * 300)),
        ({"type": "integer"}, "9" * 500, "9" * 500),
        ({"type": "number"}, "1e3", 1000.0),
        ({"type": "number"}, ".5", 0.5),
        ({"type": "number"}, "5", 5),
        ({"type": "number"}, "nan", "nan"),
        ({"type": "float"}, "2.50", 2.5),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "FALSE", False),
        ({"type": "boolean"}, "yes", True),
        ({"type": "boolean"}, "Off", False),
        ({"type": "boolean"}, "maybe", "maybe"),
        ({"type": "integer"}, "nil", None),
        ({"type": "object"}, '{"a": [1, {}]}', {"a": [1, {}]}),
        ({"type": "object"}, "{'a': True, 'b': None}", {"a": True, "b": None}),
        ({"type": "object"}, "{broken", "{broken"),
        ({"type": "array"}, "(1, 'x')", [1, "x"]),
        ({"type": "array"}, "[1, 2,]", [1, 2]),
        ({"type": "dict"}, "{}", {}),
        ({"type": "varchar(20)"}, "5", "5"),
        ({"type": "list[str]"}, '["a"]', ["a"]),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, '{"a": 1}', '{"a": 1}'),
        ({"oneOf": [{"type": "integer"}, {"type": "array"}]}, "[1]", [1]),
        ({"allOf": [{"type": "integer"}, {"minimum": 0}]}, "4", 4),
        ({"enum": [1, 2]}, "2", 2),
        ({"enum": ["1", "2"]}, "2", "2"),
        ({"enum": ["1", 2]}, "2", "2"),
        ({"const": True}, "true", True),
        ({"properties": {"a": {}}}, '{"a": 1}', {"a": 1}),
        ({"items": {}}, "[1]", [1]),
        ({"$ref": "#/$defs/Cfg"}, '{"n": 1}', {"n": 1}),
        ({"$ref": "#/$defs/Loop"}, "5", "5"),
        ({"$ref": "#/$defs/None"}, "5", "5"),
        ({"description": "anything"}, '{"x": 1}', {"x": 1}),
        ({"description": "anything"}, "123", "123"),
        ({"type": "any"}, "123", 123),
        ({"type": "any"}, "abc", "abc"),
        (None, "123", "123"),
        (True, "123", "123"),
        ({"type": 7}, "123", "123"),
    ],
)
def test_values(schema: Any, text: str, value: Any) -> None:
    root = {"$defs": {"Cfg": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}}
    got = json.loads(to_json(text, ParamType(kinds_of(schema, root))))
    assert got == value
    assert type(got) is type(value)


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(max_size=30),
    kinds=st.frozensets(st.sampled_from(["string", "integer", "number", "boolean", "object", "array", "null", "any"])),
)
def test_every_text_becomes_valid_json(text: str, kinds: frozenset[str]) -> None:
    assert is_object('{"v": ' + to_json(text, ParamType(kinds)) + "}")


@settings(max_examples=200, deadline=None)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda s: st.lists(s, max_size=3) | st.dictionaries(st.text(max_size=3), s, max_size=3),
        max_leaves=8,
    )
)
def test_containers_written_as_json_or_python_come_back(value: Any) -> None:
    kind = ParamType(frozenset({"object", "array"}))
    if isinstance(value, list | dict):
        assert json.loads(to_json(json.dumps(value), kind)) == value
        assert to_json(json.dumps(value, separators=(",", ":")), kind) == json.dumps(value, separators=(",", ":"))


def test_parameters_behind_references_and_all_of_are_found() -> None:
    tool = Tool(
        "f",
        {
            "$ref": "#/$defs/P",
            "$defs": {
                "P": {"allOf": [{"properties": {"a": {"type": "integer"}}}], "properties": {"b": {"type": "string"}}}
            },
        },
    )
    assert tool.type_of("a").kinds == {"integer"}
    assert tool.type_of("b").streams
    assert tool.type_of("c").kinds == set()


@pytest.mark.parametrize(
    "tools",
    [
        [{}],
        [{"function": {}}],
        [{"name": 5}],
        [{"function": {"name": "f", "parameters": 5}}],
        [{"name": "f", "parameters": {"properties": []}}],
        ["x"],
    ],
)
def test_malformed_declarations_do_not_raise(tools: Any) -> None:
    for tool in ToolSet(tools):
        assert tool.type_of("a").kinds == set()


def test_a_name_is_known_as_early_as_possible() -> None:
    tools = ToolSet([{"name": "get_weather"}, {"name": "functions.odd"}, {"name": "a-b.c"}])
    assert all(
        tools.may_begin(t)
        for t in ("", "g", " \nget_weather", '"get_weather"', "functions.get", "func", "functions.odd", "a-b.")
    )
    assert not any(tools.may_begin(t) for t in ("x", "get_weatherx", "functions.x", "get_weather" + " " * 500))
    assert tools.get(" functions.get_weather\n") is tools.get("get_weather") is not None
    assert tools.get("get_weathe") is None


def test_elements_inside_elements_become_json_by_the_schema() -> None:
    schema = {"properties": {"n": {"type": "integer"}, "xs": {"items": {"type": "string"}}}}
    text = "N<n>5N</n>N<xs>N<item>1N</item>N<item>N</item>N</xs>N<free>textN</free>"
    assert json.loads(nested_json(text, "N", SchemaNode(schema, schema))) == {"n": 5, "xs": ["1", ""], "free": "text"}
    assert json.loads(nested_json("N<a>broken", "N", SchemaNode({}, {}))) == "N<a>broken"
    deep = "N<a>" * 200 + "x" + "N</a>" * 200
    assert json.loads(nested_json(deep, "N", SchemaNode({}, {})))


@pytest.mark.parametrize("word", ["properties", "additionalProperties"])
def test_either_word_about_members_makes_an_object(word: str) -> None:
    assert kinds_of({word: {}}, {}) == {"object"}
