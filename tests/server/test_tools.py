"""tools, tool_choice and their other spellings."""

from __future__ import annotations

from typing import Any

import pytest

from server import limits
from server.errors import BadRequest
from server.schema_check import check_schema
from server.tools import parse_functions, parse_tools


def tool(name: str = "f", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def refused(tools: Any, choice: Any = None) -> BadRequest:
    with pytest.raises(BadRequest) as info:
        parse_tools(tools, choice, None)
    return info.value


@pytest.mark.parametrize("choice", [None, "auto", "none"])
def test_a_choice_without_tools_is_plain_text(choice: Any) -> None:
    for tools in (None, []):
        assert parse_tools(tools, choice, True).choice == "none"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_forced_call_needs_tools(choice: Any) -> None:
    assert refused([], choice).param == "tool_choice"


@pytest.mark.parametrize("choice", ["any", "Required", "", 5, [], {"type": "function"}, {"type": "x", "name": "f"}])
def test_other_choices_are_refused_with_the_allowed_ones(choice: Any) -> None:
    error = refused([tool()], choice)
    assert error.param == "tool_choice"
    assert "'none', 'auto', 'required'" in error.message


def test_unknown_names_are_refused() -> None:
    assert refused([tool()], {"type": "function", "function": {"name": "nope"}}).param == "tool_choice"
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [tool("nope")]}}
    assert refused([tool()], allowed).param == "tool_choice"


@pytest.mark.parametrize(
    "choice",
    [{"type": "function", "function": {"name": "g"}}, {"type": "function", "name": "g"}],
    ids=["chat", "responses"],
)
@pytest.mark.parametrize("parallel", [None, True, False])
def test_a_named_choice_declares_all_and_allows_one_call_of_one(choice: Any, parallel: bool | None) -> None:
    tools = parse_tools([tool("f"), tool("g")], choice, parallel)
    assert not tools.parallel
    assert (tools.choice, tools.names) == ("required", ["g"])
    assert [item["function"]["name"] for item in tools.declared] == ["f", "g"]
    assert [item["function"]["name"] for item in tools.callable] == ["g"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(mode: str) -> None:
    listed = [{"type": "function", "function": {"name": "g"}}]
    for choice in (
        {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": listed}},
        {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "g"}]},
    ):
        tools = parse_tools([tool("f"), tool("g")], choice, None)
        assert tools.choice == mode
        assert [item["function"]["name"] for item in tools.callable] == ["g"]
    for broken in ({"mode": "x", "tools": listed}, {"mode": mode, "tools": []}, {"mode": mode, "tools": [5]}, 5):
        assert refused([tool("g")], {"type": "allowed_tools", "allowed_tools": broken}).param == "tool_choice"


def test_none_declares_nothing() -> None:
    assert parse_tools([tool()], "none", None).declared == ()


@pytest.mark.parametrize("parameters", [None, {}], ids=["null", "empty"])
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_no_parameters(parameters: Any, choice: str) -> None:
    tools = parse_tools([tool(parameters=parameters)], choice, None)
    assert isinstance(tools.declared[0]["function"]["parameters"], dict)
    assert parse_tools([tool()], choice, None).declared[0]["function"]["parameters"] == {
        "type": "object",
        "properties": {},
    }


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([None], "tools[0]"),
        ([tool(), {}], "tools[1].type"),
        ([{"type": "web_search"}], "tools[0].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {"parameters": {}}}], "tools[0].function.name"),
        ([tool("")], "tools[0].function.name"),
        ([tool("a b")], "tools[0].function.name"),
        ([tool("é")], "tools[0].function.name"),
        ([tool("f"), tool("f")], "tools[1].function.name"),
        ([tool(description=5)], "tools[0].function.description"),
        ([tool(strict="yes")], "tools[0].function.strict"),
        ([tool(parameters=[])], "tools[0].function.parameters"),
        ([tool(parameters=False)], "tools[0].function.parameters"),
        ([tool(parameters="{}")], "tools[0].function.parameters"),
    ],
)
def test_malformed_tools(tools: Any, param: str) -> None:
    error = refused(tools)
    assert error.param == param
    assert error.status == 400


def test_the_message_names_the_offending_type() -> None:
    assert "web_search" in refused([{"type": "web_search"}]).message


def test_names_of_real_clients() -> None:
    for name in ("Plug-get_weather", "transfer_to_agent", "math.factorial", "a" * limits.MAX_TOOL_NAME):
        assert parse_tools([tool(name)], None, None).names == [name]


def test_strict_rules() -> None:
    good = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {}, "additionalProperties": False}},
        "required": ["a"],
        "additionalProperties": False,
    }
    assert parse_tools([tool(strict=True, parameters=good)], None, None).declared[0]["function"]["strict"] is True
    for broken in (
        good | {"required": []},
        good | {"additionalProperties": True},
        {key: value for key, value in good.items() if key != "additionalProperties"},
        good | {"properties": {"a": {"type": "object", "properties": {"b": {}}}}},
        good | {"$defs": {"x": {"type": "object", "properties": {}}}},
    ):
        error = refused([tool(strict=True, parameters=broken)])
        assert error.code == "invalid_function_parameters"
    for strict in (False, None):
        parse_tools([tool(strict=strict, parameters=good | {"required": []})], None, None)


def test_odd_schemas_pass_with_auto_and_are_refused_where_a_grammar_is_needed() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "any"}}}
    parse_tools([tool(parameters=odd)], "auto", None)
    assert refused([tool(parameters=odd)], "required").code == "invalid_function_parameters"
    parse_tools([tool("odd", parameters=odd), tool("g")], {"type": "function", "name": "g"}, None)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://127.0.0.1:1/x"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json#/a"},
        {"$ref": "#/nope"},
        {"$ref": "#anchor"},
        {"$ref": 5},
        {"$dynamicRef": "http://x/"},
        {"properties": {"a": {"items": [{"$ref": "#/properties/b"}]}}},
        {"pattern": "("},
        {"pattern": "(" * 100 + ")" * 100},
        {"patternProperties": {"(": {}}},
        {"type": "banana"},
        {"minLength": -1},
        {"required": 5},
        {"enum": ["x"] * (limits.MAX_ENUM_VALUES + 1)},
    ],
)
def test_bad_schemas(schema: Any) -> None:
    with pytest.raises(BadRequest) as info:
        check_schema(schema, "p")
    assert info.value.param == "p"


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$ref": "#"},
        {"$ref": "#/$defs/a~1b%20c", "$defs": {"a/b c": {"type": "string"}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer", "minimum": -9007199254740991},
        {"$schema": "http://evil.example/", "$id": "http://evil.example/", "type": "string"},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"const": "("}, "enum": {"enum": [{"$ref": "x"}]}}},
        {"default": {"$ref": "http://x/"}, "const": {"pattern": "("}},
        {"pattern": "(?<=x)y"},
    ],
)
def test_good_schemas(schema: Any) -> None:
    check_schema(schema, "p")


def test_functions() -> None:
    tools = parse_functions([{"name": "f"}, {"name": "g"}], {"name": "g"})
    assert not tools.parallel
    assert tools.names == ["g"]
    assert parse_functions([{"name": "f"}], "none").declared == ()
    for functions, choice, param in (
        ([], None, "functions"),
        ([{"name": ""}], None, "functions[0].name"),
        ([5], None, "functions[0]"),
        ([{"name": "f", "parameters": []}], None, "functions[0].parameters"),
        ([{"name": "f"}], {"name": "x"}, "function_call"),
        ([{"name": "f"}], "any", "function_call"),
        (None, {"name": "f"}, "function_call"),
    ):
        with pytest.raises(BadRequest) as info:
            parse_functions(functions, choice)
        assert info.value.param == param
