"""``tools``, ``tool_choice`` and their legacy and Responses spellings, checked and brought into one form.

Custom tools become functions (server/custom_tools.py). Decisions: ``tools: []`` counts as absent, ``functions: []`` is
refused as OpenAI refuses it. Names may hold dots and up to 128 characters, which is more than OpenAI allows and what
other servers' clients send. A schema is checked against the meta-schema where a grammar must come of it (required,
named, ``strict``); with ``auto`` a schema that is merely odd is passed to the model as it is, within the size limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from server import limits
from server.custom_tools import as_function, text_grammar
from server.errors import BadRequest, invalid, quote
from server.lark_pattern import NoPattern
from server.param_names import renamed
from server.schema_check import check_schema, check_strict
from server.schema_tidying import tidied

Choice = Literal["none", "auto", "required"]

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,%d}" % limits.MAX_TOOL_NAME)  # noqa: UP031 (braces of the regex)
_TOOL = re.compile(r"^tools\b(\[\d+\])?(?:\.function\b)?")
_CHOICES = "'none', 'auto', 'required', or an object that names a function, a custom tool or allowed_tools"


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request declared and what it allows.

    declared: function tools in OpenAI's form, parameters never null, empty where the choice is ``none``: these are
    rendered. callable: those the answer may call. custom: the names of custom tools. patterns: by those names, what
    their text must match. relaxations: what of their formats is not enforced.
    """

    declared: Sequence[dict[str, Any]] = ()
    choice: Choice = "none"
    names: Sequence[str] = ()
    parallel: bool = True
    custom: frozenset[str] = frozenset()
    patterns: Mapping[str, str] = field(default_factory=dict)
    relaxations: Sequence[str] = ()

    @property
    def callable(self) -> list[dict[str, Any]]:
        allowed = set(self.names)
        return [tool for tool in self.declared if tool["function"]["name"] in allowed]


def parse_tools(tools: list[Any] | None, choice: Any, parallel: bool | None, *, strict_enforced: bool = True) -> Tools:
    """The chat form (``tools``, ``tool_choice``). A named choice means one call, whatever ``parallel`` says. Raises
    BadRequest naming the field."""
    declared = _declared(tools or [])
    mode, names, single = _choice(choice, [tool["function"]["name"] for tool in declared], "tool_choice")
    _check_schemas(declared, mode, names, strict_enforced)
    if mode == "none":
        return Tools()
    customs = {index: tool["custom"] for index, tool in enumerate(tools or ()) if tool["type"] == "custom"}
    patterns, relaxations = _patterns(customs)
    return Tools(
        declared,
        mode,
        names,
        parallel is not False and not single,
        custom=frozenset(tool["name"] for tool in customs.values()),
        patterns=patterns,
        relaxations=relaxations,
    )


def _patterns(customs: Mapping[int, dict[str, Any]]) -> tuple[dict[str, str], list[str]]:
    """What the texts of custom tools must match, by name, and which grammars no pattern says."""
    patterns, relaxations = {}, []
    for index, tool in customs.items():
        grammar = text_grammar(tool.get("format"), "")
        if grammar is None:
            continue
        try:
            patterns[tool["name"]] = grammar.pattern()
        except NoPattern as exc:
            relaxations.append(f"tools[{index}].custom.format is not enforced, only shown to the model: {exc}.")
    return patterns, relaxations


def parse_functions(functions: list[Any] | None, choice: Any) -> Tools:
    """The legacy form (``functions``, ``function_call``): at most one call per answer."""
    if functions is not None and not functions:
        raise BadRequest("'functions' must hold at least one function.", param="functions")
    wrapped = [{"type": "function", "function": function} for function in functions or []]
    if isinstance(choice, dict) and "type" not in choice:
        choice = {"type": "function", **choice}
    with renamed(function_path):
        declared = _declared(wrapped)
        mode, names, _ = _choice(choice, [tool["function"]["name"] for tool in declared], "function_call")
        _check_schemas(declared, mode, names, True)
    return Tools() if mode == "none" else Tools(declared, mode, names, parallel=False)


def function_path(param: str) -> str:
    """``tools[1].function.name`` as the legacy form has it: ``functions[1].name``."""
    return _TOOL.sub(r"functions\1", param)


def _declared(tools: list[Any]) -> list[dict[str, Any]]:
    if len(tools) > limits.MAX_TOOLS:
        raise BadRequest(f"'tools' holds more than {limits.MAX_TOOLS} tools.", param="tools")
    declared = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    seen: set[str] = set()
    for index, tool in enumerate(declared):
        name = tool["function"]["name"]
        if name in seen:
            raise BadRequest(f"The name {quote(name)} is declared twice.", param=f"tools[{index}].function.name")
        seen.add(name)
    if declared and len(orjson.dumps(declared)) > limits.MAX_TOOLS_BYTES:
        raise BadRequest(f"'tools' is larger than {limits.MAX_TOOLS_BYTES} bytes.", param="tools")
    return declared


def _tool(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(where, "an object is expected")
    kind = tool.get("type")
    if kind == "custom":
        return _custom(tool.get("custom"), where)
    if kind != "function":
        got = quote(kind) if isinstance(kind, str) else "nothing"
        raise invalid(f"{where}.type", f"only tools of type 'function' or 'custom' are supported, got {got}")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function", "an object is expected")
    return {"type": "function", "function": _function(function, f"{where}.function")}


def _custom(tool: Any, where: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise invalid(f"{where}.custom", "an object is expected")
    function = as_function(tool, f"{where}.custom")
    with renamed(lambda path: path.replace(f"{where}.function", f"{where}.custom")):
        return {"type": "function", "function": _function(function, f"{where}.function")}


def _function(function: dict[str, Any], where: str) -> dict[str, Any]:
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise invalid(f"{where}.name", f"1 to {limits.MAX_TOOL_NAME} characters of A-Z a-z 0-9 _ . - are expected")
    shaped: dict[str, Any] = {"name": name}
    description = function.get("description")
    if description is not None:
        if not isinstance(description, str):
            raise invalid(f"{where}.description", "a string is expected")
        shaped["description"] = description
    strict = function.get("strict")
    if strict is not None and not isinstance(strict, bool):
        raise invalid(f"{where}.strict", "a boolean is expected")
    parameters = tidied(function.get("parameters"))
    shaped["parameters"] = {"type": "object", "properties": {}} if parameters is None else parameters
    check_schema(shaped["parameters"], f"{where}.parameters", code="invalid_function_parameters", meta=False)
    if strict:
        shaped["strict"] = True
    return shaped


def _check_schemas(declared: list[dict[str, Any]], mode: Choice, names: Sequence[str], strict_enforced: bool) -> None:
    for index, tool in enumerate(declared):
        function = tool["function"]
        place = f"tools[{index}].function.parameters"
        forced = mode == "required" and function["name"] in names
        if forced or function.get("strict"):
            check_schema(function["parameters"], place, code="invalid_function_parameters")
        if function.get("strict") and strict_enforced:
            check_strict(function["parameters"], place)


def _choice(choice: Any, declared: list[str], param: str) -> tuple[Choice, Sequence[str], bool]:
    """(mode, names that may be called, whether one of them is named: then one call is wanted)."""
    choice = _in_chat_words(choice) if param == "tool_choice" else choice
    if choice is None:
        choice = "auto"
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            raise invalid(param, f"{quote(choice)}. Allowed are {_CHOICES}")
        mode: Choice = "required" if choice == "required" else "auto"
        if not declared and mode == "required":
            raise BadRequest(f"'{param}' is 'required' but no tools are declared.", param=param)
        return ("none" if choice == "none" or not declared else mode), declared, False
    if not isinstance(choice, dict):
        raise BadRequest(f"Invalid value for '{param}'. Allowed are {_CHOICES}.", param=param)
    if choice.get("type") == "allowed_tools":
        return _allowed_tools(choice, declared, param)
    name = _named(choice, param)
    _require_declared([name], declared, param)
    return "required", [name], True


def _in_chat_words(choice: Any) -> Any:
    """The choice as chat writes it: Anthropic puts the words into an object, ``any`` for ``required`` among them."""
    if isinstance(choice, dict) and choice.get("type") == "tool":
        return {**choice, "type": "function"}
    if isinstance(choice, dict) and choice.get("type") in ("any", "auto", "none", "required"):
        return "required" if choice["type"] == "any" else choice["type"]
    return choice


def _named(choice: dict[str, Any], param: str) -> str:
    kind = choice.get("type")
    inner = choice.get(kind) if kind in ("function", "custom") else None
    name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
    if kind not in ("function", "custom") or not isinstance(name, str):
        raise BadRequest(f"Invalid value for '{param}'. Allowed are {_CHOICES}.", param=param)
    return name


def _allowed_tools(choice: dict[str, Any], declared: list[str], param: str) -> tuple[Choice, Sequence[str], bool]:
    inner = choice.get("allowed_tools", choice)
    mode = inner.get("mode", "auto") if isinstance(inner, dict) else None
    listed = inner.get("tools") if isinstance(inner, dict) else None
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise invalid(param, "allowed_tools needs a mode ('auto' or 'required') and a list of tools")
    if not all(isinstance(item, dict) for item in listed):
        raise invalid(param, "every allowed tool must be an object")
    names = [_named(item, param) for item in listed]
    _require_declared(names, declared, param)
    return ("required" if mode == "required" else "auto"), names, False


def _require_declared(names: list[str], declared: list[str], param: str) -> None:
    for name in names:
        if name not in declared:
            raise BadRequest(f"'{param}' names the tool {quote(name)}, which is not declared in tools.", param=param)
