"""Where local references (``$ref``) lead: JSON pointers, percent-encoded or not, and names that parts have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMING = (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#"))


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


def by_pointers(schema: Any) -> Any:
    """The schema with references to names that its parts give themselves (``$anchor``, ``$id``) as pointers to these
    parts; other references stay. A name that several parts have stays too."""
    names = {name: places[0] for name, places in _names(schema).items() if len(places) == 1}
    return _renamed(schema, {**names, "#": "#"})


def _names(document: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    todo = [("#", document)]
    while todo:
        pointer, node = todo.pop()
        items: Any = enumerate(node) if isinstance(node, list) else ()
        if isinstance(node, Mapping):
            items = node.items()
            for key, sign in _NAMING:
                if isinstance(name := node.get(key), str) and name:
                    found.setdefault(sign + name.removesuffix("#"), []).append(pointer)
        todo += [(f"{pointer}/{escaped(key)}", value) for key, value in items if isinstance(value, Mapping | list)]
    return found


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_renamed(item, names) for item in node]
    if not isinstance(node, Mapping):
        return node
    found = {key: _renamed(value, names) for key, value in node.items()}
    for key in _REFERENCES:
        reference = found.get(key)
        if not isinstance(reference, str) or (key == "$ref" and reference.startswith("#/")):
            continue
        place, _, rest = reference.partition("#/")
        pointer = names.get(reference.removesuffix("#") or "#") or (
            f"{names[place]}/{rest}" if rest and place in names else ""
        )
        if pointer:
            del found[key]
            found["$ref"] = pointer
    return found
