"""Grammars of real requests, judged by the real check process before the engine sees them."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest

from server.app import build_app
from server.args import ServerArgs
from server.constraints import _is_free
from tests.fakes import ScriptedEngine
from tests.live import live
from toolcall.constraints import ConstrainedTool, ConstraintRequest, build_constraint

ENGINE = ScriptedEngine("ok")
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    args = ServerArgs()
    children = {child.pid for child in psutil.Process().children()}
    with live(build_app(ENGINE, args), args) as url:

        def post(**fields: Any) -> tuple[int, Any]:
            body = {"messages": [{"role": "user", "content": "hi"}], **fields}
            request = urllib.request.Request(f"{url}/v1/chat/completions", data=json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, json.load(response)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, json.load(error)["error"]

        yield post
    left = {child.pid for child in psutil.Process().children()} - children
    assert not left, "the check process outlived the application"


def tool(parameters: Any, **function: Any) -> Any:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **function}}


LOOKBEHIND = {
    "type": "object",
    "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}},
    "required": ["a"],
    "additionalProperties": False,
}
PLAIN = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": -9007199254740991}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_good_schema_passes(ask: Ask, choice: str) -> None:
    status, _ = ask(tools=[tool(PLAIN, strict=True)], tool_choice=choice)
    assert status == 200
    assert ENGINE.requests[-1].grammar is not None


def test_a_schema_that_cannot_be_enforced_is_relaxed_unless_strict(ask: Ask) -> None:
    assert ask(tools=[tool(LOOKBEHIND)], tool_choice="auto")[0] == 200
    status, error = ask(tools=[tool(LOOKBEHIND, strict=True)], tool_choice="auto")
    assert status == 400
    assert error["code"] == "invalid_function_parameters"
    assert error["param"] == "tools[0].function.parameters"


def test_a_strict_document_that_cannot_be_enforced_is_refused(ask: Ask) -> None:
    status, error = ask(
        response_format={"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": LOOKBEHIND}}
    )
    assert status == 400
    assert error["param"].startswith("response_format.json_schema")


@pytest.mark.parametrize(
    ("outputs", "status"),
    [
        ({"regex": "[ab]+"}, 200),
        ({"regex": "("}, 400),
        ({"grammar": 'root ::= "a"'}, 200),
        ({"grammar": 'a ::= "x"'}, 400),
        ({"choice": ["yes", "no"]}, 200),
        ({"json": {"type": "integer"}}, 200),
    ],
)
def test_structured_outputs(ask: Ask, outputs: Any, status: int) -> None:
    found, body = ask(structured_outputs=outputs)
    assert found == status, body
    if status == 400:
        assert body["param"].startswith("structured_outputs")


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("guided_json", {"type": 1}),
        ("guided_json", {"type": "integer", "minimum": 5, "maximum": 1}),
        ("guided_regex", "("),
        ("guided_choice", []),
        ("guided_grammar", 'a ::= "x"'),
        ("grammar", 'a ::= "x"'),
        ("regex", "("),
        ("regex", 1),
        ("ebnf", 'a ::= "x"'),
        ("json_schema", {"type": 1}),
    ],
)
def test_a_refusal_names_the_field_that_was_sent(ask: Ask, field: str, wrong: Any) -> None:
    status, error = ask(**{field: wrong})
    assert (status, error["param"]) == (400, field)


def test_llama_cpps_grammar(ask: Ask) -> None:
    """An empty one is its default."""
    assert ask(grammar='root ::= "yes" | "no"')[0] == 200
    assert ask(grammar="")[0] == 200
    assert ask(grammar="", response_format={"type": "json_object"})[0] == 200
    status, error = ask(grammar='root ::= "a"', response_format={"type": "json_object"})
    assert (status, error["param"]) == (400, "grammar")


@pytest.mark.parametrize("regex", ["(", "[", "a{9999999999999}", "(?<=a)b"])
def test_a_refused_regex_is_told_why(ask: Ask, regex: str) -> None:
    status, error = ask(structured_outputs={"regex": regex})
    assert status == 400
    assert not error["message"].rstrip().endswith(":"), error["message"]


@pytest.mark.parametrize("policy", ["on", "strict-only", "off"])
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("strict", [True, False, None])
@pytest.mark.parametrize("document", [None, {"type": "object"}])
def test_the_short_cut_agrees_with_the_builder(policy: Any, choice: Any, strict: bool | None, document: Any) -> None:
    tools = () if strict is None else (ConstrainedTool("f", PLAIN, strict),)
    request = ConstraintRequest(format="hermes", tools=tools, choice=choice, document=document, policy=policy)
    assert _is_free(request) == (build_constraint(request) is None)
