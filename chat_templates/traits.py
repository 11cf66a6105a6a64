"""What a template can render, found out by rendering small conversations once per template.

Templates differ in ways their authors never wrote down: arguments as text or object, content as text or parts,
no system role, strict alternation, no tools. A probe asks the template itself instead of guessing by name.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any

from chat_templates.errors import TemplateError, TemplateLimitError
from chat_templates.sandbox import compile_template, time_limit

_NEEDLE = "n33dle"
_ARGUMENT = "argum3nt"
_CALL_ID = "abcdefgh9"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NEEDLE,
        "description": "d",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}, "required": []},
    },
}


@dataclass(frozen=True)
class Traits:
    """Facts of one template. ``tools``: renders declarations, calls and results, all three."""

    content_parts: bool
    object_arguments: bool
    system: bool
    late_system: bool
    consecutive: bool
    tools: bool
    think_markers: bool
    thinking_key: bool
    call_ids: str
    """``kimi``, ``mistral`` or "" for ids that the template takes as they are."""


@functools.lru_cache(maxsize=32)
def template_traits(source: str) -> Traits:
    """Probe ``source``: about ten renders of one to five short messages, within one time limit together.

    Raises TemplateError where it cannot be compiled, TemplateLimitError where it never ends.
    """
    with time_limit():
        return _probe_all(source)


def _probe_all(source: str) -> Traits:
    probe = _Probe(source)
    parts = not probe.shows(_NEEDLE, [_user(_NEEDLE)]) and probe.shows(_NEEDLE, [_user(_parts(_NEEDLE))])
    probe.parts = parts
    objects = probe.renders_object_arguments()
    return Traits(
        content_parts=parts,
        object_arguments=objects,
        system=probe.shows(_NEEDLE, [_system(_NEEDLE), _user("u")]),
        late_system=probe.shows(_NEEDLE, [_user("u"), _assistant("a"), _system(_NEEDLE), _user("v")]),
        consecutive=probe.shows(_NEEDLE, [_user("u"), _user(_NEEDLE)]),
        tools=probe.renders_tools(objects),
        think_markers="</think>" in source,
        thinking_key=re.search(r"""(\.thinking\b|\[['"]thinking['"]\]|['"]thinking['"] in )""", source) is not None,
        call_ids=_id_style(source),
    )


def _id_style(source: str) -> str:
    if "<|tool_call_begin|>" in source and "<|tool_call_argument_begin|>" in source:
        return "kimi"
    if "[TOOL_CALLS]" in source and ("[TOOL_RESULTS]" in source or "[CALL_ID]" in source):
        return "mistral"
    return ""


def _user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def _assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def _parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


class _Probe:
    def __init__(self, source: str) -> None:
        self._template = compile_template(source)
        self.parts = False

    def render(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str | None:
        if self.parts:
            messages = [{**m, "content": _parts(m["content"])} if m["role"] == "user" else m for m in messages]
        variables = {"messages": messages, "tools": tools, "add_generation_prompt": True}
        try:
            return self._template.render({**variables, "bos_token": "", "eos_token": ""})
        except TemplateLimitError:
            raise
        except TemplateError:
            return None

    def shows(self, needle: str, messages: list[dict[str, Any]]) -> bool:
        return needle in (self.render(messages) or "")

    def renders_object_arguments(self) -> bool:
        """False where object arguments raise or show Python's repr, and arguments as text do not."""
        text = self.render(_tool_turn({"x": _ARGUMENT}), [_TOOL]) or ""
        if _ARGUMENT in text and f"{{'x': '{_ARGUMENT}'" not in text:
            return True
        return _ARGUMENT not in (self.render(_tool_turn(f'{{"x": "{_ARGUMENT}"}}'), [_TOOL]) or "")

    def renders_tools(self, objects: bool) -> bool:
        declared = self.render([_user("u")], [_TOOL]) or ""
        arguments: Any = {"x": _ARGUMENT} if objects else f'{{"x": "{_ARGUMENT}"}}'
        turn = self.render(_tool_turn(arguments), [_TOOL]) or ""
        return _NEEDLE in declared and _ARGUMENT in turn and "r3sult" in turn


def _tool_turn(arguments: Any) -> list[dict[str, Any]]:
    call = {"id": _CALL_ID, "type": "function", "function": {"name": _NEEDLE, "arguments": arguments}}
    return [
        _user("u"),
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _CALL_ID, "name": _NEEDLE, "content": "r3sult"},
        _assistant("a"),
        _user("v"),
    ]
