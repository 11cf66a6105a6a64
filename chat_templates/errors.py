"""What can go wrong between a conversation and a prompt. All of it is the caller's to fix: HTTP status 400."""

from __future__ import annotations


class TemplateError(ValueError):
    """The template refused the conversation, broke a limit, or cannot be read. ``param`` names the request field."""

    status = 400

    def __init__(self, message: str, *, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class TemplateLimitError(TemplateError):
    """The template ran too long or made too much text, whatever the conversation."""


class HistoryError(TemplateError):
    """A message that no template could render: unknown role, an image, a tool result without a call."""
