"""Texts and the JSON that means them."""

from __future__ import annotations

import json
import re
from json.encoder import encode_basestring

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
ESCAPED = '"\\' + "".join(map(chr, range(0x20)))
"""The characters that a JSON string cannot hold as they are."""
WORDS = {"true": "true", "false": "false", "null": "null", "True": "true", "False": "false", "None": "null"}
"""JSON's words, and Python's for the same."""
_SURROGATE = re.compile("[\ud800-\udfff]")
_LOOSE_NUMBER = re.compile(r"([+-]?)([0-9][0-9_]*)?(?:\.([0-9_]*))?([eE][+-]?[0-9]+)?")


def escape(text: str) -> str:
    """The inside of a JSON string that means this text; non-ASCII stays itself."""
    return encode_basestring(text)[1:-1]


def encodable(text: str) -> str:
    """The text with lone surrogates, which no encoding has, as the escapes that they were written as."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def quote(text: str) -> str:
    return encode_basestring(text)


def number(text: str) -> str | None:
    """A number as JSON writes it, None if it is none. ``007``, ``+1``, ``.5``, ``1_000`` are put right."""
    if _NUMBER.fullmatch(text):
        return text
    found = _LOOSE_NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, fraction, exponent = found.groups()
    if not whole and not fraction:
        return None
    digits = (whole or "0").replace("_", "").lstrip("0") or "0"
    fraction = (fraction or "").replace("_", "")
    return ("-" if sign == "-" else "") + digits + (f".{fraction}" if fraction else "") + (exponent or "")


def is_object(text: str) -> bool:
    """Whether the text is strict JSON and an object."""
    try:
        return isinstance(json.loads(text, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(name: str) -> None:
    raise ValueError(name)
