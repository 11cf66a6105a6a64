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
    name_ends=("\n",),
    name_stops=("{", "```"),
    leads=_FENCES,
    trails=("```",),
    closes=(_CALL_END,),
)
_V31 = replace(_V3, name_ends=(_SEP, "\n"))


def _section(calls: NamedJson) -> tuple[Block, ...]:
    return (
        Block(opener=_BEGIN, bodies=(calls,), closers=(_END,)),
        Block(opener=_CALL, keep_opener=True, bodies=(calls,), closers=(_END,)),
    )


DEEPSEEK_V3 = Format(
    name="deepseek_v3",
    aliases=("deepseekv3",),
    families="DeepSeek-V3-0324, DeepSeek-R1-0528",
    blocks=_section(_V3),
    end_tokens=_EOS,
    reasoning="deepseek_r1",
    own_markers_special=True,
    template_signs=(_CALL, "```json"),
)

DEEPSEEK_V31 = Format(
    name="deepseek_v31",
    aliases=("deepseekv31",),
    families="DeepSeek-V3.1, V3.1-Terminus",
    blocks=_section(_V31),
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    own_markers_special=True,
    template_signs=(_CALL,),
)

_DSML = "<｜DSML｜"
_DSML_END = "</｜DSML｜"


def _dsml(wrapper: str) -> tuple[Block, ...]:
    close = f"{_DSML_END}{wrapper}>"
    calls = TaggedCalls(
        call_open=f"{_DSML}invoke name=",
        name_end=">",
        self_close="/>",
        param_open=f"{_DSML}parameter name=",
        key_end=">",
        value_close=f"{_DSML_END}parameter>",
        trim_newlines=False,
        call_close=f"{_DSML_END}invoke>",
        next_open=(f"{_DSML}invoke", close),
        object_body=True,
    )
    return (
        Block(opener=f"{_DSML}{wrapper}>", bodies=(calls, JsonCalls(foreign=True)), closers=(close,)),
        Block(opener=f"{_DSML}invoke name=", keep_opener=True, bodies=(calls,), closers=(close,)),
    )


DEEPSEEK_V32 = Format(
    name="deepseek_v32",
    aliases=("deepseekv32",),
    families="DeepSeek-V3.2",
    blocks=_dsml("function_calls"),
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    template_signs=(_DSML + "function_calls>",),
)

DEEPSEEK_V4 = Format(
    name="deepseek_v4",
    aliases=("deepseekv4",),
    families="DeepSeek-V4",
    blocks=_dsml("tool_calls"),
    end_tokens=_EOS,
    reasoning="deepseek_v3",
    template_signs=(_DSML + "tool_calls>",),
)
