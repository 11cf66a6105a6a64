"""``tools``, ``tool_choice`` and ``text`` of /v1/responses in the form that the rest of the gateway reads.

Function tools and custom ones lie flat here, or as on chat, or in namespaces, whose tools the model calls by both
names. Tools of
other types (hosted ones) are listed by real clients that do not need them: they are echoed and otherwise ignored, and
cannot be chosen. Tools of MCP servers are refused: whoever names a server needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from server import limits
from server.constraints import FREE, OutputShape, parse_json_schema
from server.errors import BadRequest, Unsupported, invalid
from server.tools import Tools, parse_tools

_KEYS = MappingProxyType(
    {"function": ("name", "description", "parameters", "strict"), "custom": ("name", "description", "format")}
)


@dataclass(frozen=True, slots=True)
class Declared:
    """A function or custom tool. path: where the request has it; namespace: which it belongs to, "" for none."""

    path: str
    tool: Mapping[str, Any]
    namespace: str = ""

    @property
    def name(self) -> str:
        """What the model calls it; "" where the request gives no name, which is refused later."""
        name = self.tool.get("name")
        return str(qualified(self.namespace, name)) if name and isinstance(name, str) else ""


def qualified(namespace: Any, name: Any) -> Any:
    """One name for a tool of a namespace, as codex writes it too: ``crm__find``."""
    if not namespace or not isinstance(namespace, str) or not isinstance(name, str):
        return name
    return f"{namespace.removesuffix('__')}__{name}"


def chat_kind(tool: Any) -> str:
    """``function`` or ``custom`` for a tool that is declared as on chat, below a key of that name; "" for others."""
    kinds = [kind for kind in _KEYS if isinstance(tool, dict) and isinstance(tool.get(kind), dict)]
    return kinds[0] if kinds else ""


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    kind = chat_kind(tool)
    return {**tool[kind], "type": kind} if kind else tool


def declared_tools(tools: Any, items: Sequence[Mapping[str, Any]] = (), known: int = 0) -> list[Declared]:
    """The function and custom tools of ``tools`` and of ``additional_tools`` items, those in namespaces included.
    A later item's tool takes the place of one of its name. known: so many of the items are stored ones. Raises
    BadRequest for what is no tool at all."""
    found = _declared(tools or (), "tools")
    for index, item in enumerate(items):
        if item["type"] == "additional_tools":
            more = _declared(item["tools"], f"input[{index - known}].tools" if index >= known else "input")
            names = {entry.name for entry in more}
            found = [entry for entry in found if entry.name not in names] + more
    if len(found) > limits.MAX_TOOLS:
        raise BadRequest(f"'tools' holds more than {limits.MAX_TOOLS} tools.", param="tools")
    return found


def _declared(tools: Sequence[Any], param: str, namespace: str = "") -> list[Declared]:
    if len(tools) > limits.MAX_TOOLS:
        raise BadRequest(f"'{param}' holds more than {limits.MAX_TOOLS} tools.", param=param)
    found: list[Declared] = []
    for index, tool in enumerate(tools):
        where = f"{param}[{index}]"
        if not isinstance(tool, dict):
            raise invalid(where, "an object is expected")
        if kind := chat_kind(tool):
            tool, where = _flat(tool), f"{where}.{kind}"
        if not isinstance(tool.get("type"), str):
            raise invalid(f"{where}.type", "a string is expected")
        if tool["type"] == "mcp":
            raise Unsupported(f"{where}.type", f"'{where}': this server connects to no MCP servers.")
        if tool["type"] in _KEYS:
            found.append(Declared(where, tool, namespace))
        elif tool["type"] == "namespace" and not namespace:
            found += _of_namespace(tool, where)
    return found


def _of_namespace(tool: Mapping[str, Any], where: str) -> list[Declared]:
    name, tools, description = tool.get("name"), tool.get("tools"), tool.get("description")
    if not isinstance(name, str) or not name:
        raise invalid(f"{where}.name", "a string is expected")
    if not isinstance(tools, list):
        raise invalid(f"{where}.tools", "a list is expected")
    found = _declared(tools, f"{where}.tools", name)
    if not found or not isinstance(description, str) or not description:
        return found
    first = found[0]  # the model has no other place to read of the namespace
    own = first.tool.get("description")
    told = f"{description}\n\n{own}" if isinstance(own, str) and own else description
    return [replace(first, tool={**first.tool, "description": told}), *found[1:]]


def read_tools(declared: Sequence[Declared], choice: Any, parallel: bool | None) -> Tools:
    """Errors name the tools in chat's form: see server.param_names.tool_path."""
    return parse_tools(chat_tools(declared), chat_choice(choice, declared), parallel)


def chat_tools(declared: Sequence[Declared]) -> list[dict[str, Any]]:
    """The tools in chat's form."""
    wrapped = []
    for entry in declared:
        kind = entry.tool["type"]
        given = {key: entry.tool[key] for key in _KEYS[kind] if key in entry.tool}
        wrapped.append({"type": kind, kind: given | ({"name": entry.name} if entry.namespace else {})})
    return wrapped


def chat_choice(choice: Any, declared: Sequence[Declared]) -> Any:
    """``tool_choice`` in chat's form. allowed_tools may list namespaces, and tools of other types, which are ignored
    like their definitions."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools" or not isinstance(choice.get("tools"), list):
        return _chosen(choice, declared)[0]
    kinds = (*_KEYS, "namespace")
    listed = [tool for tool in choice["tools"] if not isinstance(tool, dict) or tool.get("type") in kinds]
    return {**choice, "tools": [one for tool in listed for one in _chosen(tool, declared)]}


def _chosen(tool: Any, declared: Sequence[Declared]) -> list[Any]:
    """The tools that one choice names, by what the model calls them."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return [tool]
    if tool.get("type") == "namespace":
        inside = [entry for entry in declared if entry.namespace == tool["name"]]
        return [{"type": entry.tool["type"], "name": entry.name} for entry in inside] or [tool]
    if tool.get("namespace"):
        return [{**tool, "name": qualified(tool["namespace"], tool["name"])}]
    names = {entry.name for entry in declared}
    inside = [entry for entry in declared if entry.namespace and entry.tool.get("name") == tool["name"]]
    if tool["name"] in names or len(inside) != 1:
        return [tool]
    return [{**tool, "name": inside[0].name}]


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
        raise invalid("text.format.type", "'text', 'json_object' or 'json_schema' is expected")
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
        for tool in map(_flat, tools or ())
    ]
