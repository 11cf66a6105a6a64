"""Equality as shared by all cases: strict on types, lenient where the API is (null and "")."""

from __future__ import annotations

import json
import re
from typing import Any


def same_json(a: Any, b: Any) -> bool:
    """True != 1 and "5" != 5; 5 == 5.0. A lone surrogate equals U+FFFD."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, int | float) and isinstance(b, int | float):
        return a == b
    if isinstance(a, str) and isinstance(b, str):
        return _printable(a) == _printable(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return a is None and b is None


def _printable(text: str) -> str:
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def same_content(got: str | None, expected: str | None, *, with_calls: bool) -> bool:
    a, b = got or "", expected or ""
    return (collapse(a) == collapse(b)) if with_calls else a == b


def collapse(text: str) -> str:
    return " ".join(text.split())


def load_object(arguments: str) -> dict[str, Any] | None:
    """The arguments as clients read them: strict JSON, an object; None otherwise."""
    try:
        value = json.loads(arguments, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> None:
    raise ValueError(name)
