"""The headers of tags: ``="a" x="y"``, ``name="a"``, ``x="y" name="a"``."""

from __future__ import annotations

import re
from collections.abc import Callable

from toolcall.json_text import quote
from toolcall.schema import ANY, STRING, ParamType, Tool, to_json

NAMES = ("name", "tool", "key")
"""The attribute that holds the name; without it the name stands alone."""
_NAMED = rf"(?:{'|'.join(NAMES)})\s*+="
_LABEL = re.compile(rf"[\s=]*(?:{_NAMED}\s*)?")
_TYPE = re.compile(r"""\b(string|type)\s*=\s*["']?(\w+)""")
_UNQUOTED = re.compile(r"(\S+)(\s+\w+\s*=.*)", re.DOTALL)
_VALUE = r"""(?:"[^"]*+"|'[^']*+'|[^\s"'=]++)"""
_OTHERS = re.compile(rf"(?:\s*+(?!{_NAMED})[\w:.-]++\s*+=\s*+{_VALUE}\s++)++(?={_NAMED})")
"""Attributes that stand in front of the name's."""
_ATTRIBUTE = re.compile(rf"([\w:.-]++)\s*+=\s*+({_VALUE})")
_PART = re.compile(
    rf"""(?:\s*+[\w:.-]++\s*+=\s*+{_VALUE}\s++)*+\s*+(?:[\w:.-]++\s*+)?(?:=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s"'=]*+))?"""
)
"""Attributes of which the last one may not be whole."""


def _unknown(name: str) -> bool:
    return False


def first_attribute(header: str, known: Callable[[str], bool] = _unknown) -> tuple[str, str]:
    """``"a" x="y"`` -> ("a", ' x="y"'); text without quotes is all name, up to an attribute. ``name=`` before it is a
    label, in front of which other attributes may stand. A name that is known as it stands means itself."""
    if known(header):
        return header, ""
    others = _OTHERS.match(header)
    before = others.group() if others is not None else ""
    plain = _LABEL.sub("", header[len(before) :], count=1)
    if plain[:1] in ('"', "'"):
        name, _, rest = plain[1:].partition(plain[0])
    else:
        found = _UNQUOTED.fullmatch(plain)
        name, rest = found.groups() if found is not None else (plain, "")
        name = name.rstrip()
    return name if known(name) else unescape(name), f"{before} {rest}" if before else rest


def may_be_label(header: str) -> bool:
    """Whether the header is the beginning of ``name=``, so that nothing of the name has arrived."""
    plain = re.sub(r"\s+", "", header).lstrip("=")
    return any(f"{name}=".startswith(plain) for name in NAMES)


def may_be_attributes(header: str) -> bool:
    """Whether the header is the beginning of attributes: more text can make it one that holds a name."""
    return _PART.fullmatch(header) is not None


def named_with_attributes(header: str, takes: Callable[[str], bool]) -> bool:
    """Whether the header is a name without quotes, and behind it the beginning of attributes."""
    name, space, rest = _LABEL.sub("", header, count=1).partition(" ")
    return bool(space) and takes(name) and may_be_attributes(rest)


def arguments_in(attributes: str, tool: Tool) -> str | None:
    """The arguments that attributes behind a name are: ``f city="Oslo" days=2``. None where they are none."""
    found = _ATTRIBUTE.findall(attributes)
    known = all(tool.has(key) for key, _ in found) and _ATTRIBUTE.sub("", attributes).strip() == ""
    if not found or not known:
        return None
    plain = ((key, value[1:-1] if value[0] in "\"'" else value) for key, value in found)
    return "{" + ", ".join(f"{quote(key)}: {to_json(value, tool.type_of(key))}" for key, value in plain) + "}"


def unescape(text: str) -> str:
    """The two entities that attribute values are written with."""
    return text.replace("&quot;", '"').replace("&amp;", "&") if "&" in text else text


def attribute_type(attributes: str) -> ParamType | None:
    """The type that a key's attributes say, None if they say none."""
    found = _TYPE.search(attributes)
    if found is None:
        return None
    return STRING if found.group(1, 2) in (("string", "true"), ("type", "string")) else ANY
