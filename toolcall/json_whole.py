"""A JSON value that is there as a whole, by the readers of values that arrive."""

from __future__ import annotations

from collections.abc import Callable

from toolcall.json_stream import read_value
from toolcall.lexer import Lexer, Markers, NoCall, Put, Read


def decode_all(reader: Callable[[Lexer, Put], Read[None]], text: str, *, ends: bool = False) -> str | None:
    """Runs a reader over a whole text; the JSON it put, None if the text is not wholly such a value. ends: something
    says that it should be one, and where it ends."""
    lx = Lexer()
    lx.ends = Markers(()) if ends else None
    lx.append(text.strip())
    lx.eof = True
    parts: list[str] = []
    try:
        for _ in reader(lx, parts.append):
            return None
    except NoCall:
        return None
    return "".join(parts) if lx.pos == len(lx.buf) else None


def loose_json(text: str, *, ends: bool = False) -> str | None:
    """Strict JSON of a value written as JSON or as a Python literal; None if it is neither. ends: see decode_all."""
    return decode_all(read_value, text, ends=ends)
