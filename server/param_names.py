"""Errors in a dialect's own words: shared code checks a request in chat's form and names chat's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from engine.client import EngineError
from engine.sampling_params import InvalidParam
from server.errors import ApiError, translate

Rename = Callable[[str], str]
"""A field's path in chat's form -> the path in the request that the client sent."""

_TOOL = re.compile(r"tools\[(\d+)\](?:\.(?:function|custom)\b)?")


@contextmanager
def renamed(rename: Rename) -> Iterator[None]:
    """Whatever refuses the request inside names the client's own field."""
    try:
        yield
    except (ApiError, InvalidParam, EngineError) as exc:
        raise _renamed(translate(exc), rename) from None


def _renamed(error: ApiError, rename: Rename) -> ApiError:
    if error.param:
        name = rename(error.param)
        whole = "[" in error.param or "." in error.param
        old, new = (error.param, name) if whole else (f"'{error.param}'", f"'{name}'")
        error.message = error.message.replace(old, new)
        if error.message.startswith(f"{error.param} "):
            error.message = name + error.message.removeprefix(error.param)
        error.param = name
    return error


def tool_path(param: str, places: Sequence[str]) -> str:
    """``tools[1].function.name`` -> ``tools[3].name``, where the second function stands at ``places[1]``."""
    match = _TOOL.match(param)
    if match is None or int(match[1]) >= len(places):
        return param
    return f"{places[int(match[1])]}{param[match.end() :]}"
