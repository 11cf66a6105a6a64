"""``tools``, ``tool_choice`` and ``text`` of /v1/responses in the form that the rest of the gateway reads.

Function tools and custom ones lie flat here. Tools of other types (hosted ones, namespaces) are listed by real clients
that do not need them: they are echoed and otherwise ignored, and cannot be chosen. Tools of MCP servers are refused:
whoever names a server needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server import limits
from server.constraints import FREE, OutputShape, parse_json_schema
from server.errors import BadRequest, Unsupported
from server.tools import Tools, parse_tools

_KEYS = MappingProxyType(
    {"function": ("name", "description", "parameters", "strict"), "custom": ("name", "description", "format")}
)


def function_places(tools: list[Any] | None) -> list[int]:
    """Indices of the function and custom tools. Raises BadRequest for what is no tool at all."""
    if tools is not None and len(tools) > limits.MAX_TOOLS:
        raise BadRequest(f"'tools' holds more than {limits.MAX_TOOLS} tools.", param="tools")
    places = []
    for index, tool in enumerate(tools or ()):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise BadRequest(f"Invalid value for '{where}': an object is expected.", param=where)
        if not isinstance(tool.get("type"), str):
            raise BadRequest(f"Invalid value for '{where}.type': a string is expected.", param=f"{where}.type")
        if tool["type"] == "mcp":
            raise Unsupported(f"{where}.type", f"'{where}': this server connects to no MCP servers.")
        if tool["type"] in _KEYS:
            places.append(index)
    return places


def read_tools(tools: list[Any] | None, places: list[int], choice: Any, parallel: bool | None) -> Tools:
    """Errors name the tools in chat's form: see server.param_names.tool_path."""
    wrapped = [
        {"type": tool["type"], tool["type"]: {key: tool[key] for key in _KEYS[tool["type"]] if key in tool}}
        for tool in ((tools or [])[place] for place in places)
    ]
    return parse_tools(wrapped, _choice(choice), parallel)


def _choice(choice: Any) -> Any:
    """allowed_tools may list tools of other types, which are ignored like their definitions."""
    if (
        not isinstance(choice, dict)
        or choice.get("type") != "allowed_tools"
        or not isinstance(choice.get("tools"), list)
    ):
        return choice
    listed = [tool for tool in choice["tools"] if not isinstance(tool, dict) or tool.get("type") in tuple(_KEYS)]
    return {**choice, "tools": listed}


def read_text(text: Mapping[str, Any] | None) -> OutputShape:
    """``text.format``: text, json_object or json_schema, which lies flat here."""
    given = (text or {}).get("format")
    if given is None:
        return FREE
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return FREE
    if kind == "json_object":
        return OutputShape(document={"type": "object"}, param="text.format")
    if kind != "json_schema":
        raise BadRequest(
            "Invalid value for 'text.format.type': 'text', 'json_object' or 'json_schema' is expected.",
            param="text.format.type",
        )
    inner = given.get("json_schema")
    if isinstance(inner, dict):  # chat's form
        return parse_json_schema(inner, "text.format.json_schema")
    return parse_json_schema(given, "text.format")


def echoed_format(text: Mapping[str, Any] | None) -> dict[str, Any]:
    """``text.format`` as OpenAI echoes it: flat, every key that its type needs is there. It must have been read."""
    given = (text or {}).get("format") or {"type": "text"}
    if given["type"] != "json_schema":
        return {"type": given["type"]}
    inner = given.get("json_schema")
    flat = {key: value for key, value in (inner if isinstance(inner, dict) else given).items() if value is not None}
    return {"name": "response", "schema": {"type": "object"}, **flat, "type": "json_schema"}


def echoed_choice(choice: Any) -> Any:
    """``tool_choice`` as OpenAI echoes it."""
    if not isinstance(choice, dict):
        return "auto" if choice is None else choice
    if isinstance(choice.get("function"), dict):
        return {"type": "function", "name": choice["function"].get("name")}
    if choice.get("type") == "allowed_tools":
        inner = choice.get("allowed_tools", choice)
        return {"type": "allowed_tools", "mode": inner.get("mode", "auto"), "tools": inner.get("tools")}
    return choice


def echoed_tools(tools: list[Any] | None) -> list[Any]:
    """The request's tools as OpenAI echoes them: every key of a function tool is there."""
    return [
        {"strict": False, "description": None, "parameters": None, **{k: v for k, v in tool.items() if v is not None}}
        if tool["type"] == "function"
        else tool
        for tool in tools or ()
    ]
