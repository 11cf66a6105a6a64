"""Texts that make careless parsers slow: half-open things, many times over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import toolcall
from tests.toolcall.render_calls import RENDERERS

Build = Callable[[int], str]


def adversarial(name: str, tool: str = "write_file") -> Mapping[str, Build]:
    """Label -> text of about so many characters, for one format."""
    fmt = toolcall.get_format(name)
    openers = [b.opener for b in (*fmt.blocks, *fmt.bare) if b.opener] or ["<|start|>"]
    opener = openers[0]
    call = RENDERERS[name]([(tool, {"path": "a", "content": "b"})])
    half = call[: len(call) * 2 // 3]

    def times(unit: str, before: str = "") -> Build:
        return lambda size: before + unit * max(1, size // len(unit))

    return {
        "openers": times(opener),
        "openers and spaces": times(opener + " "),
        "half calls": times(half),
        "whole calls": times(call),
        "one call of endless spaces": times(" ", opener),
        "one endless string": times("x", half),
        "one endless string of markers": times(opener + "\n", half),
        "braces": times("{"),
        "brackets": times("[", opener),
        "nested objects": times('{"a":', opener + '{"name": "' + tool + '", "arguments": '),
        "backslashes": times("\\", half),
        "quotes": times('"', half),
        "half objects in quotes": times(opener + '{"name": "' + tool + '", "arguments": {"path": "'),
        "keys": times('"' + opener + '{":1,', opener + "{"),
        "less-than signs": times("<"),
        "fences": times("```json\n{"),
        "bare objects": times('{"name": "' + tool + '", "arguments": {}} '),
        "bare half objects": times('{"name": "' + tool + '", '),
        "thinking": times("<think>" + opener),
        "drafts": times(call, "<think>"),
        "closers": times("</tool_call></function></parameter>"),
        "parameters": times("<parameter=path>\n", opener),
        "functions": times("<function=" + tool + ">\n<parameter=path>\n"),
        "separators": times("<｜tool▁sep｜>x", opener),
        "commas": times(",;\n", call),
        "new lines": times("\n", call),
    }
