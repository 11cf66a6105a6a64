"""The headers of tags: ``="a" x="y"``, ``name="a"``."""

from __future__ import annotations

import re

from toolcall.schema import ANY, STRING, ParamType

_LABEL = re.compile(r"[\s=]*(?:name\s*=\s*)?")


def first_attribute(header: str) -> tuple[str, str]:
    """``"a" x="y"`` -> ("a", ' x="y"'); text without quotes is all name. ``name=`` before it is a label."""
    plain = _LABEL.sub("", header, count=1)
    if plain[:1] in ('"', "'"):
        name, _, rest = plain[1:].partition(plain[0])
        return unescape(name), rest
    return unescape(plain.rstrip()), ""


def may_be_label(header: str) -> bool:
    """Whether the header is the beginning of ``name=``, so that nothing of the name has arrived."""
    return "name=".startswith(re.sub(r"\s+", "", header).lstrip("="))


def unescape(text: str) -> str:
    """The two entities that attribute values are written with."""
    return text.replace("&quot;", '"').replace("&amp;", "&") if "&" in text else text


def attribute_type(attributes: str) -> ParamType | None:
    """The type that a key's attributes say, None if they say none."""
    plain = attributes.replace(" ", "").replace("'", '"')
    if 'string="true"' in plain or 'type="string"' in plain:
        return STRING
    return ANY if 'string="' in plain or 'type="' in plain else None
