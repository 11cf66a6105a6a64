"""The formats by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from toolcall.format import Format, ReasoningFormat
from toolcall.formats.hermes import HERMES, LONGCAT
from toolcall.formats.qwen3_coder import QWEN3_CODER, SEED_OSS
from toolcall.reasoning import REASONING_FORMATS

FORMATS: tuple[Format, ...] = (
    HERMES,
    LONGCAT,
    QWEN3_CODER,
    SEED_OSS,
)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


_BY_NAME: Mapping[str, Format] = MappingProxyType({_plain(n): f for f in FORMATS for n in (f.name, *f.aliases)})
_REASONING: Mapping[str, ReasoningFormat] = MappingProxyType(
    {_plain(n): f for f in REASONING_FORMATS for n in (f.name, *f.aliases)}
)


def get_format(name: str) -> Format:
    """The format of this name or alias; ValueError names the known ones."""
    found = _BY_NAME.get(_plain(name))
    if found is None:
        raise ValueError(f"unknown tool-call format {name!r}; known: {', '.join(f.name for f in FORMATS)}")
    return found


def get_reasoning(name: str) -> ReasoningFormat:
    """The reasoning format of this name or alias; ValueError names the known ones."""
    found = _REASONING.get(_plain(name))
    if found is None:
        raise ValueError(f"unknown reasoning format {name!r}; known: {', '.join(f.name for f in REASONING_FORMATS)}")
    return found


def list_formats() -> tuple[Format, ...]:
    return FORMATS
