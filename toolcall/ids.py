"""Ids of tool calls, in the styles that model families need to see again in their history."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Literal

IdFactory = Callable[[str, int], str]
"""(name, index of the call in this answer) -> id."""

IdStyle = Literal["openai", "mistral", "kimi"]

_ALNUM = string.ascii_letters + string.digits


def openai_id(name: str, index: int) -> str:
    return "call_" + secrets.token_hex(12)


def mistral_id(name: str, index: int) -> str:
    """Nine alphanumerics: Mistral's templates refuse anything else."""
    return "".join(secrets.choice(_ALNUM) for _ in range(9))


def make_id_factory(style: IdStyle = "openai", history_calls: int = 0) -> IdFactory:
    """history_calls: tool calls already in the conversation; Kimi's ids count on from there."""
    if style == "mistral":
        return mistral_id
    if style == "kimi":
        return lambda name, index: f"functions.{name}:{history_calls + index}"
    return openai_id
