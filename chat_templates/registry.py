"""Which template a model is rendered with: its own where it has one that can be used, else one of ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from chat_templates.errors import TemplateError
from chat_templates.traits import template_traits

FAMILIES = {
    "chatml": ("none",),
    "qwen2.5": ("qwen25", "qwen", "hermes", "any"),
    "qwen3": (),
    "qwen3_coder": ("qwen3_xml", "qwen3coder"),
    "llama3": ("llama3_json",),
    "llama4_pythonic": ("pythonic", "llama4_json"),
    "mistral": (),
    "deepseek_v3": ("deepseekv3",),
    "deepseek_v31": ("deepseekv31",),
    "kimi_k2": (),
    "glm45": ("glm", "glm47"),
    "gpt_oss": ("gpt-oss", "harmony", "openai"),
}
"""Template name -> other names for it, those of tool-call formats among them."""

_VOCABULARIES = (
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<|channel|>", "gpt_oss"),
    ("<arg_key>", "glm45"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|header_start|>", "llama4_pythonic"),
    ("<|start_header_id|>", "llama3"),
    ("<tool_call>", "qwen2.5"),
)
"""A special token that only one family has -> that family's template; first match wins."""


@dataclass(frozen=True)
class ChosenTemplate:
    """``source`` is jinja; ``why`` is one line for the start banner."""

    source: str
    name: str
    why: str


def list_templates() -> list[str]:
    return sorted(FAMILIES)


def get_template(name: str) -> str:
    """Source of a built-in template, by its name, a format's name, or its file name. KeyError where unknown."""
    wanted = name.removesuffix(".jinja").lower()
    for family, aliases in FAMILIES.items():
        if wanted == family or wanted in aliases:
            return resources.files("chat_templates").joinpath(f"{family}.jinja").read_text("utf-8")
    raise KeyError(name)


def family_of(special_tokens: Iterable[str]) -> str | None:
    """The built-in template that fits a vocabulary, None where no marker gives it away."""
    tokens = set(special_tokens)
    return next((family for marker, family in _VOCABULARIES if marker in tokens), None)


def choose_template(own: str | None, special_tokens: Iterable[str] = (), override: str = "") -> ChosenTemplate:
    """Decide once, at start.

    own: the model's template, if any. override: ``--chat-template``: a file, a built-in name, or "".
    Raises TemplateError for an override that is neither, or for a template that does not compile.
    """
    if override:
        return _from_override(override)
    family = family_of(special_tokens)
    if own:
        if template_traits(own).tools:
            return ChosenTemplate(own, "model", "the model's own")
        if family in ("deepseek_v3", "kimi_k2", "gpt_oss", "glm45", "mistral", "llama3"):
            return ChosenTemplate(get_template(family), family, f"built-in {family}: the model's own renders no tools")
        return ChosenTemplate(own, "model", "the model's own; tools travel as text, it renders none")
    if family:
        return ChosenTemplate(get_template(family), family, f"built-in {family}: the model has none, its tokens fit")
    return ChosenTemplate(get_template("chatml"), "chatml", "built-in chatml: the model has none")


def _from_override(override: str) -> ChosenTemplate:
    path = Path(override).expanduser()
    if path.is_file():
        source = path.read_text("utf-8")
        template_traits(source)
        return ChosenTemplate(source, path.name, f"--chat-template {override}")
    try:
        return ChosenTemplate(get_template(override), override, f"built-in {override}, as asked")
    except KeyError:
        names = ", ".join(list_templates())
        message = f"chat template {override!r} is neither a file nor one of: {names}"
        raise TemplateError(message, param="chat_template") from None
