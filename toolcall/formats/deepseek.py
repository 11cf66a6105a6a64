"""DeepSeek V3 to V4."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, NamedJson, TaggedCalls

_FENCES = ("```json", "```")
_EOS = ("<｜end▁of▁sentence｜>",)


def _mark(words: str, gap: str = "▁", bar: str = "｜") -> str:
    return f"<{bar}{words.replace(' ', gap)}{bar}>"


_BEGIN, _END, _CALL, _CALL_END, _SEP = map(
    _mark, ("tool calls begin", "tool calls end", "tool call begin", "tool call end", "tool sep")
)
_V3 = NamedJson(
    call_open=_CALL,
    prefixes=("function" + _SEP, "function " + _SEP),
    name_ends=(_SEP, "\n"),
    name_stops=("{", "```"),
    leads=_FENCES,
    trails=("```",),
    closes=(_CALL_END,),
)


def _misspelt(gap: str, bar: str = "｜") -> Block:
    """A section as models spell it that have no tokens for its marks."""
    sep = _mark("tool sep", gap, bar)
    calls = replace(
        _V3,
        call_open=_mark("tool call begin", gap, bar),
        prefixes=("function" + sep,),
        name_ends=(sep, "\n"),
        closes=(_mark("tool call end", gap, bar),),
    )
    bodies = (replace(_V3, foreign=True), replace(calls, foreign=True), replace(calls, call_open="", foreign=True))
    opener, closer = _mark("tool calls begin", gap, bar), _mark("tool calls end", gap, bar)
    return Block(opener=opener, bodies=bodies, closers=(closer, _END))


_SECTION = (
    Block(opener=_BEGIN, bodies=(_V3, replace(_V3, call_open="", foreign=True)), closers=(_END,)),
    Block(opener=_CALL, keep_opener=True, bodies=(_V3,), closers=(_END,)),
    Block(opener=_mark("tool calls"), bodies=(replace(_V3, foreign=True),), closers=(_END,)),
    *map(_misspelt, ("_", " ", "\\_")),
    *(_misspelt(gap, "|") for gap in "▁_"),
)
"""V3 and V3.1 differ in what stands around the name; either's way is read in both."""

_DSML = "<｜DSML｜"
_WRAPPERS = ("function_calls", "tool_calls")
_MISSPELT = ("toolcalls", "tool_call", "functioncalls", "function_call", "tool_use", "calls")
_SPELLINGS = ("｜DSML｜", "｜｜DSML｜｜", "|DSML|", "||DSML||", "‖DSML‖", " | DSML | ", "| DSML | ", "｜ DSML ｜")
"""The mark, and what models make of it. It is ordinary text, so each is spelt token by token."""


def _dsml(mark: str) -> tuple[Block, ...]:
    wrappers = (*_WRAPPERS, *_MISSPELT)
    closers = tuple(f"</{mark}{w}>" for w in wrappers)
    calls = TaggedCalls(
        call_open=f"<{mark}invoke ",
        call_opens=(f"<{mark}invoke=", "<invoke "),
        name_end=">",
        self_close="/>",
        param_open=f"<{mark}parameter ",
        param_opens=(f"<{mark}parameter=", "<parameter "),
        key_end=">",
        value_close=f"</{mark}parameter>",
        value_closes=("</parameter>",),
        trim_newlines=False,
        call_close=f"</{mark}invoke>",
        call_closes=("</invoke>",),
        prefixed=True,
        next_open=(f"<{mark}invoke", *closers),
        object_body=True,
    )
    openers = (*(f"<{mark}{w}>" for w in wrappers), *(f"<{mark}{w}\n" for w in _WRAPPERS))
    return (
        *(Block(opener=opener, bodies=(calls, JsonCalls(foreign=True)), closers=closers) for opener in openers),
        *(
            Block(opener=opener, keep_opener=True, bodies=(calls,), closers=closers)
            for opener in (calls.call_open, calls.call_opens[0])
        ),
    )


_STRAY = tuple(f"</{mark}{word}>" for mark in _SPELLINGS[:2] for word in (*_WRAPPERS, "invoke", "parameter"))
"""Closing tags of calls, which are no text where no call has begun."""
_BLOCKS = tuple(block for mark in _SPELLINGS for block in _dsml(mark))


def _deepseek(name: str, alias: str, families: str, *, reasoning: str, signs: tuple[str, ...]) -> Format:
    """One version of the family. Each reads what the others write: they are taken for one another."""
    dsml = "DSML" in signs[0]
    blocks = (*_BLOCKS, *_SECTION) if dsml else (*_SECTION, *_BLOCKS)
    return Format(
        name=name,
        aliases=(alias,),
        families=families,
        blocks=tuple(sorted(blocks, key=lambda block: signs[0] not in block.opener)) if dsml else blocks,
        hidden=(_BEGIN, _END, _CALL_END, *_STRAY),
        end_tokens=_EOS,
        reasoning=reasoning,
        own_markers_special=not dsml,
        template_signs=signs,
    )


DEEPSEEK_V3 = _deepseek(
    "deepseek_v3",
    "deepseekv3",
    "DeepSeek-V3-0324, DeepSeek-R1-0528",
    reasoning="deepseek_r1",
    signs=(_CALL, "```json"),
)
DEEPSEEK_V31 = _deepseek(
    "deepseek_v31", "deepseekv31", "DeepSeek-V3.1, V3.1-Terminus", reasoning="deepseek_v3", signs=(_CALL,)
)
DEEPSEEK_V32 = _deepseek(
    "deepseek_v32", "deepseekv32", "DeepSeek-V3.2", reasoning="deepseek_v3", signs=(_DSML + "function_calls>",)
)
DEEPSEEK_V4 = _deepseek(
    "deepseek_v4", "deepseekv4", "DeepSeek-V4", reasoning="deepseek_v3", signs=(_DSML + "tool_calls>",)
)
