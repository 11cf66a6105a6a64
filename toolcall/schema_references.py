"""Where local references (``$ref``) lead: JSON pointers, percent-encoded or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote


def follow(reference: str, root: Any) -> Any:
    """What a reference into its own document leads to; None where it leads nowhere."""
    if not reference.startswith("#/"):
        return root if reference == "#" else None
    node = root
    for part in reference[2:].split("/"):
        node = _member(node, part)
        if node is None:
            return None
    return node


def escaped(key: Any) -> str:
    """A key as it stands in a JSON pointer."""
    return str(key).replace("~", "~0").replace("/", "~1")


def _member(node: Any, part: str) -> Any:
    for key in dict.fromkeys((_plain(part), _plain(unquote(part)))):
        if isinstance(node, Mapping) and key in node:
            return node[key]
        if isinstance(node, list) and key.isdecimal() and int(key) < len(node):
            return node[int(key)]
    return None if part else node


def _plain(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")
