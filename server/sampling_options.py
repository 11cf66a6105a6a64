"""Sampling options as Ollama's and llama.cpp's clients write them, in the words that all endpoints share."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from server.body import convert
from server.openai.types.common import SamplingFields

_UNSET_BELOW: Mapping[str, int] = MappingProxyType({"top_k": 1, "seed": 0, "max_tokens": 1})
"""Smaller numbers mean that the option is not set: -1 and -2 tokens are as many as there is room for."""


def read_options(options: Mapping[str, Any], names: Mapping[str, str]) -> SamplingFields:
    """names: what a client calls an option -> the field that it is; other options are ignored. Raises BadRequest
    naming the field."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        field = names.get(name)
        if field is None or value is None:
            continue
        if isinstance(value, int | float) and value < _UNSET_BELOW.get(field, value):
            continue
        given[field] = value
    return convert(given, SamplingFields)


def option_name(param: str, names: Mapping[str, str]) -> str:
    """The option that a sampling field's path stands for, "" where it is none."""
    return next((name for name, field in names.items() if field == param.partition("[")[0]), "")
