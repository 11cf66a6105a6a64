"""A conversation and tools in, a prompt out, through the model's own template or one of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chat_templates.adapt import adapt, split_reasoning
from chat_templates.errors import HistoryError, TemplateError
from chat_templates.guard import Guard, pick_unused, strings_in
from chat_templates.history import Message, normalise, normalise_tools
from chat_templates.sandbox import CompiledTemplate, compile_template
from chat_templates.traits import Traits, template_traits

__all__ = ["HistoryError", "RenderedPrompt", "TemplateError", "render"]

RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "continue_final_message"})
MAX_KWARG_CHARS = 10_000


@dataclass(frozen=True)
class RenderedPrompt:
    """``text`` for TextTokenizer.encode(text, guard=guard). ``guard`` is "" where no client text spelled a token."""

    text: str
    guard: str = ""

    @property
    def plain(self) -> str:
        """The prompt as a person reads it, without guards."""
        return self.text.replace(self.guard, "") if self.guard else self.text


def render(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    tools: Iterable[Mapping[str, Any]] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    special_tokens: Iterable[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    bos_token: str | None = None,
    eos_token: str | None = None,
) -> RenderedPrompt:
    """Render with ``template`` (jinja source). ``messages`` may be raw client messages or normalised ones.

    special_tokens: every spelling that must not come out of client text as a token (TextTokenizer.special_tokens).
    kwargs: the request's chat_template_kwargs; names that the template does not use are ignored.
    continue_final_message: the prompt ends inside the last (assistant) message; no generation prompt is added.
    Raises HistoryError for messages that cannot be rendered, TemplateError with the template's own message.
    """
    compiled, traits = compile_template(template), template_traits(template)
    shaped, wanted = normalise(messages), normalise_tools(tools)
    extra = _allowed_kwargs(compiled, kwargs)
    if traits.think_markers:
        shaped = [split_reasoning(message) for message in shaped]
    texts = [*strings_in([shaped, wanted, extra]), template]
    guard = Guard(pick_unused(texts), special_tokens)
    end = pick_unused([*texts, guard.char])
    shaped, wanted = adapt([guard.apply(m) for m in shaped], guard.apply(wanted), traits)
    if continue_final_message:
        shaped = _mark_end(shaped, end)
    variables = {
        **guard.apply(extra),
        "messages": _as_template_messages(shaped, traits),
        "tools": wanted or None,
        "add_generation_prompt": add_generation_prompt and not continue_final_message,
        "bos_token": bos_token or "",
        "eos_token": eos_token or "",
    }
    text = compiled.render(variables)
    if continue_final_message:
        text = _cut_at(text, end)
    return RenderedPrompt(text, guard.char if guard.used else "")


def _allowed_kwargs(template: CompiledTemplate, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """The part of chat_template_kwargs that the template names; scalars only, no way around messages and tools."""
    if kwargs is None:
        return {}
    if not isinstance(kwargs, Mapping):
        raise TemplateError("chat_template_kwargs must be an object", param="chat_template_kwargs")
    allowed = {}
    for name, value in kwargs.items():
        if name not in template.variables or name in RESERVED:
            continue
        if not isinstance(value, (str, int, float, bool)) and value is not None:
            message = f"chat_template_kwargs.{name} must be a string, number, boolean or null"
            raise TemplateError(message, param=f"chat_template_kwargs.{name}")
        if isinstance(value, str) and len(value) > MAX_KWARG_CHARS:
            raise TemplateError(f"chat_template_kwargs.{name} is too long", param=f"chat_template_kwargs.{name}")
        allowed[name] = value
    return allowed


def _mark_end(messages: list[Message], end: str) -> list[Message]:
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        raise HistoryError("continue_final_message needs a last message of role assistant without tool calls")
    return [*messages[:-1], {**last, "content": last["content"] + end}]


def _cut_at(text: str, end: str) -> str:
    head, found, _ = text.rpartition(end)
    if not found:
        raise TemplateError("the chat template does not render the message that should be continued")
    return head


def _as_template_messages(messages: list[Message], traits: Traits) -> list[Message]:
    if not traits.content_parts:
        return messages
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in messages]
