"""The fields of /v1/messages around the conversation: tools, thinking, output format, and what is refused.

Tools with a ``type`` other than ``custom`` run on Anthropic's servers or have schemas that only its models know. They
are ignored like the hosted tools of /v1/responses, and cannot be chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server import limits
from server.constraints import FREE, OutputShape, parse_json_schema
from server.errors import BadRequest, Unsupported, invalid
from server.fields import check_choice, first_refused
from server.tools import Tools, parse_tools

IGNORED: Mapping[str, str] = MappingProxyType(
    {
        "anthropic_beta": "as the header of that name: nothing here depends on it",
        "betas": "as the header anthropic-beta",
        "billing_policy": "nothing is billed",
        "cache_control": "the prefix cache needs no hint; on blocks and tools too",
        "context_management": "nothing is cleared; too long a context is a 400",
        "diagnostics": "not produced",
        "fallback_credit_token": "nothing is billed",
        "inference_geo": "there is one place",
        "metadata": "not kept",
        "service_tier": "there is one tier",
        "speed": "there is one speed",
        "user_profile_id": "not kept",
        "workspace_id": "not kept",
    }
)
REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "thread": (),
        "compaction": (),
        "container": (),
        "mcp_servers": ([],),
        "fallbacks": ([], "default"),
    }
)
"""Fields that would change the answer, with the values that mean "off". null is always off."""

_CHOICES: Mapping[str, str] = MappingProxyType({"auto": "auto", "any": "required", "none": "none"})
EFFORTS = ("low", "medium", "high", "xhigh", "max")


class ThreadUnsupported(Unsupported):
    """By its code the SDK's ``tool_runner`` knows that it may send the whole conversation instead, and does."""

    details: Mapping[str, Any] | None = MappingProxyType({"error_code": "thread_unsupported_request"})

    def __init__(self) -> None:
        super().__init__(
            "thread", "'thread' is not supported by this server: send the whole conversation in 'messages'."
        )


def refuse_fields(body: Mapping[str, Any]) -> None:
    """Raise Unsupported for the first field that we cannot honour."""
    name = first_refused(body, REFUSED)
    if name is not None:
        raise ThreadUnsupported() if name == "thread" else Unsupported(name)


def tool_places(tools: list[Any] | None) -> list[int]:
    """Indices of the tools that the model is told of."""
    if tools is not None and len(tools) > limits.MAX_TOOLS:
        raise BadRequest(f"'tools' holds more than {limits.MAX_TOOLS} tools.", param="tools")
    for index, tool in enumerate(tools or ()):
        if not isinstance(tool, dict):
            raise invalid(f"tools[{index}]", "an object is expected")
        if tool.get("type") == "function":
            where = f"tools[{index}].type"
            raise invalid(where, "tools have a name and an input_schema here")
        if tool.get("type") in (None, "custom") and not isinstance(tool.get("input_schema"), dict):
            where = f"tools[{index}].input_schema"
            raise invalid(where, "a JSON Schema object is expected")
    return [index for index, tool in enumerate(tools or ()) if tool.get("type") in (None, "custom")]


def read_tools(tools: list[Any] | None, places: list[int], choice: Mapping[str, Any] | None) -> Tools:
    """Errors name the tools in chat's form: see server.param_names.tool_path."""
    functions = [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool.get("input_schema"),
                "strict": tool.get("strict"),
            },
        }
        for tool in ((tools or [])[place] for place in places)
    ]
    single = (choice or {}).get("disable_parallel_tool_use")
    if single is not None and not isinstance(single, bool):
        where = "tool_choice.disable_parallel_tool_use"
        raise invalid(where, "a boolean is expected")
    return parse_tools(functions, _choice(choice), not single, strict_enforced=False)


def _choice(choice: Mapping[str, Any] | None) -> Any:
    if choice is None:
        return None
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and isinstance(name, str):
        return {"type": "function", "function": {"name": name}}
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise invalid("tool_choice", "an object of type 'auto', 'any', 'none' or 'tool' is expected")
    return _CHOICES[kind]


def read_thinking(thinking: Mapping[str, Any] | None) -> tuple[bool, bool]:
    """(whether the template is asked to let the model think, whether thinking blocks are sent). The budget is not
    enforced: max_tokens bounds thinking and answer together."""
    if thinking is None:
        return False, False
    kind = thinking.get("type")
    if kind not in ("enabled", "adaptive", "between_tools", "disabled"):
        raise invalid("thinking.type", "'enabled', 'adaptive' or 'disabled' is expected")
    budget = thinking.get("budget_tokens")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 1):
        raise invalid("thinking.budget_tokens", "a positive integer is expected")
    on = kind != "disabled"
    return on, on and thinking.get("display") != "omitted"


def read_format(config: Mapping[str, Any] | None, older: Mapping[str, Any] | None) -> OutputShape:
    """``output_config.format``, or the older ``output_format``: a JSON schema, or nothing."""
    param, given = "output_config.format", (config or {}).get("format")
    if given is None and older is not None:
        param, given = "output_format", older
    if given is None:
        return FREE
    if not isinstance(given, dict) or given.get("type") != "json_schema" or not isinstance(given.get("schema"), dict):
        raise invalid(param, "an object of type 'json_schema' with a schema is expected")
    return parse_json_schema({"schema": given["schema"]}, param)


def read_effort(config: Mapping[str, Any] | None) -> str | None:
    effort = (config or {}).get("effort")
    check_choice(effort, EFFORTS, "output_config.effort")
    return effort
