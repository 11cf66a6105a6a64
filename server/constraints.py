"""The seam between requests and grammars: what must a request's answer look like, and does that compile?

``toolcall.constraints`` writes the grammar, server/constrainer.py finds out in a killable process whether it compiles,
the engine enforces it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from engine.grammar.check import CheckFailed
from engine.grammar.interface import GrammarError
from engine.grammar.source import to_lark
from engine.messages import GrammarSpec
from server import limits
from server.constrainer import Constrained, Constrainer, UnusableSchema
from server.custom_tools import parameters
from server.errors import BadRequest, Unavailable, invalid
from server.schema_check import check_schema, nesting
from server.schema_tidying import tidied
from server.tools import Tools
from toolcall.constraints import ConstrainedTool, ConstraintRequest, Policy, Reasoning, after_reasoning, enforces

_PATTERN = "/properties/input/pattern"
_PARAMETERS = re.compile(rf"^tools\[(\d+)\]\.function\.parameters({_PATTERN}(?= )|)")
_STRUCTURED_KEYS = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True)
class OutputShape:
    """What the answer's text must be, tools aside: free, a JSON document, or a client's own grammar."""

    document: Mapping[str, Any] | None = None
    strict: bool = False
    grammar: GrammarSpec | None = None
    param: str = "response_format"


FREE = OutputShape()


def parse_response_format(value: Mapping[str, Any] | None) -> OutputShape:
    """OpenAI's ``response_format``, and ``json_object`` or ``json_schema`` with a ``schema`` beside the type, as
    llama.cpp and others have it. Raises BadRequest naming the part that is wrong."""
    if value is None:
        return FREE
    kind = value.get("type")
    if kind == "text":
        return FREE
    if kind == "json_object":
        return parse_json_schema({"schema": value.get("schema")}, "response_format")
    if kind != "json_schema":
        raise invalid("response_format.type", "'text', 'json_object', 'json_schema' or 'structural_tag' is expected")
    inner = value.get("json_schema")
    if inner is None and value.get("schema") is not None:
        return parse_json_schema(value, "response_format")
    if not isinstance(inner, dict):
        raise BadRequest("'response_format.json_schema' is required.", param="response_format.json_schema")
    return parse_json_schema(inner, "response_format.json_schema")


def parse_json_schema(inner: Mapping[str, Any], param: str) -> OutputShape:
    """``{name, schema, strict}``; a missing or null schema means any JSON object."""
    name, strict = inner.get("name"), inner.get("strict")
    if name is not None and (not isinstance(name, str) or not 0 < len(name) <= limits.MAX_SCHEMA_NAME):
        raise BadRequest(f"Invalid value for '{param}.name'.", param=f"{param}.name")
    if strict is not None and not isinstance(strict, bool):
        raise invalid(f"{param}.strict", "a boolean is expected")
    schema = tidied(inner.get("schema"))
    if schema is None:
        return OutputShape(document={"type": "object"}, param=param)
    check_schema(schema, f"{param}.schema")
    return OutputShape(document=schema, strict=bool(strict), param=f"{param}.schema")


def parse_structured_outputs(value: Mapping[str, Any] | None) -> OutputShape:
    """vLLM's ``structured_outputs``: exactly one of json, regex, choice, grammar, json_object."""
    param = "structured_outputs"
    given = {key: item for key, item in (value or {}).items() if item is not None and item is not False}
    if not given:
        return FREE
    unknown = [key for key in given if key not in _STRUCTURED_KEYS]
    if unknown or len(given) != 1:
        raise BadRequest(f"'{param}' must hold exactly one of {', '.join(_STRUCTURED_KEYS)}.", param=param)
    key, item = next(iter(given.items()))
    if key == "json_object":
        return OutputShape(document={"type": "object"}, param=param)
    return parse_constraint(key, item, f"{param}.{key}")


def parse_constraint(key: str, item: Any, param: str) -> OutputShape:
    """One json, regex, choice or grammar, which stands at ``param`` in the request."""
    if key == "json":
        schema = tidied(item)
        check_schema(schema, param)
        return OutputShape(document=schema, strict=True, param=param)
    return OutputShape(grammar=_client_grammar(key, item, param), param=param)


def _client_grammar(key: str, item: Any, param: str) -> GrammarSpec:
    if key == "choice":
        if not isinstance(item, list) or not item or not all(isinstance(text, str) and text for text in item):
            raise BadRequest(f"'{param}' must be a list of non-empty strings.", param=param)
        if len(item) > limits.MAX_CHOICES:
            raise BadRequest(f"'{param}' holds more than {limits.MAX_CHOICES} strings.", param=param)
        return GrammarSpec(kind="choice", source=orjson.dumps(item).decode())
    if not isinstance(item, str) or not item:
        raise BadRequest(f"'{param}' must be a non-empty string.", param=param)
    if len(item.encode()) > limits.MAX_GRAMMAR_BYTES or nesting(item) > limits.MAX_GRAMMAR_NESTING:
        raise BadRequest(f"'{param}' is too large or nested too deeply.", param=param)
    return GrammarSpec(kind="regex" if key == "regex" else "ebnf", source=item)


@dataclass(frozen=True, slots=True)
class ConstraintPlan:
    """Everything that decides a request's grammar. ``reasoning``: where the prompt leaves the model."""

    format: str
    tools: Tools
    shape: OutputShape
    reasoning: Reasoning = "none"
    reasoning_markers: tuple[str, str] = ("<think>", "</think>")
    policy: Policy = "on"
    rescue: bool = True


async def constraint(plan: ConstraintPlan, constrainer: Constrainer) -> Constrained:
    """The grammar of a request, None where its text is free, and which schemas it does not enforce fully.

    Raises BadRequest for one that does not compile, Unavailable where that could not be found out.
    """
    try:
        if plan.shape.grammar is not None:
            return Constrained(await _client_constraint(plan, constrainer))
        request = _request(plan)
        free = _is_free(request)
        found = Constrained(None) if free else await constrainer.constrain(request, document_strict=plan.shape.strict)
        notes = [_tool_path(note, plan.tools) for note in (*_unheld(request, plan.tools), *found.relaxations)]
        return replace(found, relaxations=tuple(notes))
    except UnusableSchema as exc:
        raise _refusal(exc, plan) from None
    except CheckFailed as exc:
        raise Unavailable(str(exc)) from None


def _is_free(request: ConstraintRequest) -> bool:
    """Whether build_constraint would say None; asked first, because judging schemas costs more than knowing this."""
    if request.document is not None:
        return False
    if request.choice == "required" or request.policy == "on":
        return not request.tools
    return request.policy == "off" or not any(tool.strict for tool in request.tools)


def _request(plan: ConstraintPlan) -> ConstraintRequest:
    tools = [_constrained(tool["function"], plan.tools.patterns) for tool in plan.tools.callable]
    return ConstraintRequest(
        format=plan.format,
        tools=tools,
        choice="required" if plan.tools.choice == "required" else "auto",
        parallel=plan.tools.parallel,
        document=None if plan.tools.choice == "required" else plan.shape.document,
        reasoning=plan.reasoning,
        reasoning_markers=plan.reasoning_markers,
        policy=plan.policy,
        rescue=plan.rescue,
    )


def _constrained(function: Mapping[str, Any], patterns: Mapping[str, str]) -> ConstrainedTool:
    pattern = patterns.get(function["name"], "")
    schema = parameters(pattern) if pattern else function["parameters"]
    return ConstrainedTool(function["name"], schema, bool(function.get("strict")))


def _unheld(request: ConstraintRequest, tools: Tools) -> list[str]:
    """One sentence for each custom tool whose grammar the server's policy leaves out."""
    return [
        f"tools[{index}].function.parameters is not enforced, only shown to the model: grammars of calls are off."
        for index, tool in enumerate(request.tools)
        if tool.name in tools.patterns and not enforces(request, tool)
    ]


def _tool_path(text: str, tools: Tools) -> str:
    """``tools[1].function.parameters`` of those that may be called, as the client counts its tools and names them."""

    def named(found: re.Match[str]) -> str:
        name = tools.callable[int(found[1])]["function"]["name"]
        index = [tool["function"]["name"] for tool in tools.declared].index(name)
        if name in tools.patterns:
            return f"tools[{index}].custom.format"
        return f"tools[{index}].function.parameters{found[2]}"

    return _PARAMETERS.sub(named, text, count=1)


async def _client_constraint(plan: ConstraintPlan, constrainer: Constrainer) -> GrammarSpec:
    if plan.tools.choice == "required":
        raise BadRequest("A grammar and a forced tool call exclude each other.", param=plan.shape.param)
    assert plan.shape.grammar is not None
    spec = await constrainer.check(plan.shape.grammar, plan.shape.param)
    if plan.reasoning == "none":
        return spec
    if spec.triggers:
        after = plan.reasoning_markers[1] if plan.reasoning == "open" else ""
        return msgspec.structs.replace(spec, start_after=after)
    try:
        lark = await asyncio.to_thread(to_lark, spec)
    except GrammarError as error:
        raise UnusableSchema(plan.shape.param, "", str(error)) from error
    wrapped = after_reasoning(lark, plan.reasoning, plan.reasoning_markers)
    return await constrainer.check(wrapped, plan.shape.param)


def _refusal(exc: UnusableSchema, plan: ConstraintPlan) -> BadRequest:
    param = _tool_path(exc.param, plan.tools)
    if param.startswith("response_format"):
        param = plan.shape.param
    code = "invalid_function_parameters" if param.startswith("tools") else None
    reason = str(exc).removeprefix(exc.param)
    if param.endswith(".custom.format"):
        reason = reason.removeprefix(_PATTERN)
    return BadRequest(f"Invalid schema: {param if exc.param else ''}{reason}", param=param, code=code)
