"""The headers of tags: ``="a" x="y"``, ``name="a"``."""

from __future__ import annotations

import re
from collections.abc import Callable

from toolcall.schema import ANY, STRING, ParamType

_LABEL = re.compile(r"[\s=]*(?:name\s*=\s*)?")
_TYPE = re.compile(r"""\b(string|type)\s*=\s*["']?(\w+)""")
_UNQUOTED = re.compile(r"(\S+)(\s+\w+\s*=.*)", re.DOTALL)


def _unknown(name: str) -> bool:
    return False


def first_attribute(header: str, known: Callable[[str], bool] = _unknown) -> tuple[str, str]:
    """``"a" x="y"`` -> ("a", ' x="y"'); text without quotes is all name, up to an attribute. ``name=`` before it is a
    label. A name that is known as it stands means itself."""
    if known(header):
        return header, ""
    plain = _LABEL.sub("", header, count=1)
    if plain[:1] in ('"', "'"):
        name, _, rest = plain[1:].partition(plain[0])
    else:
        found = _UNQUOTED.fullmatch(plain)
        name, rest = found.groups() if found is not None else (plain, "")
        name = name.rstrip()
    return name if known(name) else unescape(name), rest


def may_be_label(header: str) -> bool:
    """Whether the header is the beginning of ``name=``, so that nothing of the name has arrived."""
    return "name=".startswith(re.sub(r"\s+", "", header).lstrip("="))


def unescape(text: str) -> str:
    """The two entities that attribute values are written with."""
    return text.replace("&quot;", '"').replace("&amp;", "&") if "&" in text else text


def attribute_type(attributes: str) -> ParamType | None:
    """The type that a key's attributes say, None if they say none."""
    found = _TYPE.search(attributes)
    if found is None:
        return None
    return STRING if found.group(1, 2) in (("string", "true"), ("type", "string")) else ANY
