"""DeepSeek V3 to V4 (F9, F10, F11)."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, NamedJson, TaggedCalls

_BEGIN, _END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _SEP, _CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCES = ("```json", "```")
_EOS = ("<｜end▁of▁sentence｜>",)

_V3 = NamedJson(
    call_open=_CALL,
    prefixes=("function" + _SEP,),
    name_ends=(_SEP, "\n"),
    name_stops=("{", "```"),
    leads=_FENCES,
    trails=("```",),
    closes=(_CALL_END,),
)
_SECTION = (
    Block(opener=_BEGIN, bodies=(_V3, replace(_V3, call_open="", foreign=True)), closers=(_END,)),
    Block(opener=_CALL, keep_opener=True, bodies=(_V3,), closers=(_END,)),
)
"""V3 and V3.1 differ in what stands around the name; either's way is read in both."""


DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    aliases=("deepseekv3",),
    families="DeepSeek-V3-0324, DeepSeek-R1-0528",
    blocks=_SECTION,
    end_tokens=_EOS,
    reasoning="deepseek_r1",
    own_markers_special=True,
    template_signs=(_CALL, "```json"),
)

DEEPSEEK_V31 = Format(
    name="deepseek_v31",
    aliases=("deepseekv31",),
    families="DeepSeek-V3.1, V3.1-Terminus",
    blocks=_SECTION,
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    own_markers_special=True,
    template_signs=(_CALL,),
)

_DSML = "<｜DSML｜"
_WRAPPERS = ("function_calls", "tool_calls")
_SPELLINGS = ("｜DSML｜", "｜｜DSML｜｜", "|DSML|", "||DSML||", "‖DSML‖")
"""The mark, and what models make of it. It is ordinary text, so each is spelt token by token."""


def _dsml(mark: str) -> tuple[Block, ...]:
    closers = tuple(f"</{mark}{w}>" for w in _WRAPPERS)
    calls = TaggedCalls(
        call_open=f"<{mark}invoke name=",
        name_end=">",
        self_close="/>",
        param_open=f"<{mark}parameter name=",
        key_end=">",
        value_close=f"</{mark}parameter>",
        trim_newlines=False,
        call_close=f"</{mark}invoke>",
        next_open=(f"<{mark}invoke", *closers),
        object_body=True,
    )
    return (
        *(Block(opener=f"<{mark}{w}>", bodies=(calls, JsonCalls(foreign=True)), closers=closers) for w in _WRAPPERS),
        Block(opener=f"<{mark}invoke name=", keep_opener=True, bodies=(calls,), closers=closers),
    )


_BLOCKS = tuple(block for mark in _SPELLINGS for block in _dsml(mark))

DEEPSEEK_V32 = Format(
    name="deepseek_v32",
    aliases=("deepseekv32",),
    families="DeepSeek-V3.2",
    blocks=_BLOCKS,
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    template_signs=(_DSML + "function_calls>",),
)

DEEPSEEK_V4 = Format(
    name="deepseek_v4",
    aliases=("deepseekv4",),
    families="DeepSeek-V4",
    blocks=tuple(sorted(_BLOCKS, key=lambda block: "｜DSML｜tool_calls" not in block.opener)),
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    template_signs=(_DSML + "tool_calls>",),
)
