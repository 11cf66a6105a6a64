"""What every dialect checks of the fields of a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from server.errors import Unsupported, invalid


def first_refused(body: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> str | None:
    """The first field of ``refused`` whose value is not one of its "off" values. null is always off."""
    for name, off in refused.items():
        value = body.get(name)
        if value is not None and value not in off:
            return name
    return None


def refuse(body: Mapping[str, Any], refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise Unsupported for the first field of ``refused`` that we cannot honour."""
    name = first_refused(body, refused)
    if name is not None:
        raise Unsupported(name)


def check_choice(value: Any, choices: Sequence[str], param: str) -> None:
    """Raise BadRequest unless ``value`` is null or one of ``choices``."""
    if value is not None and value not in choices:
        raise invalid(param, f"one of {', '.join(choices)} is expected")
