"""Conversations to prompts: one normaliser, one sandbox, the model's template or one of ours."""

from chat_templates.errors import HistoryError, TemplateError
from chat_templates.history import normalise, normalise_tools
from chat_templates.registry import ChosenTemplate, choose_template, get_template, list_templates
from chat_templates.render import RenderedPrompt, render

__all__ = [
    "ChosenTemplate",
    "HistoryError",
    "RenderedPrompt",
    "TemplateError",
    "choose_template",
    "get_template",
    "list_templates",
    "normalise",
    "normalise_tools",
    "render",
]
