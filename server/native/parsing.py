"""POST /parse_function_call and /separate_reasoning: the parsers alone, over a text that the client brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from server import limits
from server.body import convert
from server.errors import BadRequest, invalid, quote
from server.native.types import ParseFunctionCallRequest, SeparateReasoningRequest
from server.services import Services
from server.tools import parse_tools
from toolcall import get_format, get_reasoning, parse

T = TypeVar("T")


def parse_function_call(services: Services, body: dict[str, Any]) -> dict[str, Any]:
    """Text around the calls, and the calls; tool_index is -1 for a tool that was not declared. tool_call_parser: any
    name or alias, by default the served model's."""
    wanted = convert(body, ParseFunctionCallRequest)
    _check_text(wanted.text)
    tools = parse_tools(wanted.tools, "auto", None, strict_enforced=False)
    format_ = _named(wanted.tool_call_parser, "tool_call_parser", get_format) or services.planner.dialect.format
    found = parse(wanted.text, tools.declared, format_, rescue=services.args.tool_rescue)
    places = {name: index for index, name in enumerate(tools.names)}
    return {
        "normal_text": found.content,
        "calls": [
            {"tool_index": places.get(call.name, -1), "name": call.name, "parameters": call.arguments}
            for call in found.tool_calls
        ],
    }


def separate_reasoning(services: Services, body: dict[str, Any]) -> dict[str, Any]:
    """Reasoning and what follows it."""
    wanted = convert(body, SeparateReasoningRequest)
    _check_text(wanted.text)
    reasoning = _named(wanted.reasoning_parser, "reasoning_parser", get_reasoning)
    if reasoning is None:
        reasoning = services.planner.dialect.reasoning
    if reasoning is None:
        raise BadRequest("The served model has no reasoning format; name one.", param="reasoning_parser")
    found = parse(wanted.text, [], reasoning=reasoning)
    return {"reasoning_text": found.reasoning, "text": found.content}


def _check_text(text: str) -> None:
    if len(text) > limits.MAX_PARSED_CHARS:
        raise BadRequest(f"'text' is longer than {limits.MAX_PARSED_CHARS} characters.", param="text")


def _named(name: str | None, param: str, get: Callable[[str], T]) -> T | None:
    if name is None or name == "auto":
        return None
    try:
        return get(name)
    except ValueError:
        raise invalid(param, f"no parser is called {quote(name, 64)}") from None
