"""``<invoke name="f"><parameter name="k">`` and relatives: MiniMax, dots, Step3, MiniCPM5."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.rescue import INVOKE_TAGS
from toolcall.syntax import Block, JsonCalls, TaggedCalls

INVOKE = replace(INVOKE_TAGS, next_open=("<invoke",))


def prefixed(prefix: str) -> TaggedCalls:
    """The same tags with a prefix, which models forget."""
    return replace(
        INVOKE,
        call_open=f"<{prefix}invoke ",
        call_opens=(INVOKE.call_open,),
        param_open=f"<{prefix}parameter ",
        param_opens=(INVOKE.param_open,),
        value_close=f"</{prefix}parameter>",
        value_closes=(INVOKE.value_close,),
        call_close=f"</{prefix}invoke>",
        call_closes=(INVOKE.call_close,),
        prefixed=True,
        next_open=(f"<{prefix}invoke",),
    )


def _wrapped(opener: str, closer: str) -> tuple[Block, ...]:
    calls = replace(INVOKE, next_open=("<invoke", closer))
    late = (calls.call_close, calls.value_close)
    return (
        Block(opener=opener, bodies=(calls, JsonCalls(foreign=True)), closers=(closer,), leftovers=late),
        Block(opener=calls.call_open, keep_opener=True, bodies=(calls,), closers=(closer,), leftovers=late),
    )


MINIMAX_M2 = Format(
    name="minimax_m2",
    aliases=("minimax-m2", "minimax"),
    families="MiniMax M2, M2.5",
    blocks=_wrapped("<minimax:tool_call>", "</minimax:tool_call>"),
    end_tokens=("[e~[",),
    reasoning="minimax",
    template_signs=("<minimax:tool_call>",),
)

_NS = "]<]minimax[>["
_M3_CALLS = TaggedCalls(
    call_open=_NS + "<invoke ",
    call_opens=(_NS + "invoke ",),
    name_end=">",
    self_close="/>",
    param_open=_NS + "<",
    key_end=">",
    value_close=_NS + "</",
    close_by_key=True,
    trim_newlines=False,
    call_close=_NS + "</invoke>",
    next_open=(_NS + "<invoke", _NS + "</tool_call>"),
    loose_close=False,
    nested=_NS,
)
MINIMAX_M3 = Format(
    name="minimax_m3",
    aliases=("minimax-m3",),
    families="MiniMax M3",
    blocks=(
        *(
            Block(opener=_NS + opener, closers=(_NS + "</tool_call>",), bodies=(_M3_CALLS,))
            for opener in ("<tool_call>", "tool_call>")
        ),
        *(
            Block(opener=opener, keep_opener=True, closers=(_NS + "</tool_call>",), bodies=(_M3_CALLS,))
            for opener in (_M3_CALLS.call_open, *_M3_CALLS.call_opens)
        ),
    ),
    joined_mark=_NS,
    reasoning="minimax",
    template_signs=(_NS,),
    experimental=True,
)

DOTS = Format(
    name="dots",
    families="dots",
    blocks=_wrapped("<dots_function_call>", "</dots_function_call>"),
    reasoning="qwen3",
    template_signs=("<dots_function_call>",),
    experimental=True,
)

_STEP_SECTION_END = "<｜tool_calls_end｜>"
_STEP_CALL, _STEP_CALL_END = "<｜tool_call_begin｜>", "<｜tool_call_end｜>"
_STEP_INNER = (f"{_STEP_CALL}function<｜tool_sep｜>", _STEP_CALL, _STEP_CALL_END)
_STEP_CALLS = replace(prefixed("steptml:"), next_open=("<steptml:invoke", _STEP_CALL_END, _STEP_SECTION_END))
STEP3 = Format(
    name="step3",
    families="Step3",
    blocks=tuple(
        Block(
            opener=opener,
            keep_opener=opener == _STEP_CALLS.call_open,
            closers=(_STEP_SECTION_END,),
            inner=(*_STEP_INNER, "function", "<｜tool_sep｜>"),
            leftovers=(_STEP_CALLS.call_close, _STEP_CALLS.value_close),
            bodies=(_STEP_CALLS,),
        )
        for opener in ("<｜tool_calls_begin｜>", *_STEP_INNER[:2], _STEP_CALLS.call_open)
    ),
    reasoning="deepseek_r1",
    own_markers_special=True,
    template_signs=("<steptml:invoke",),
    experimental=True,
)

_FUNCTION = TaggedCalls(
    call_open="<function ",
    name_end=">",
    self_close="/>",
    param_open="<param ",
    param_opens=("<param=", "<parameter ", "<parameter="),
    key_end=">",
    value_close="</param>",
    value_closes=("</parameter>",),
    trim_newlines=False,
    call_close="</function>",
    next_open=("<function ",),
    xml=True,
    object_body=True,
)
MINICPM5 = Format(
    name="minicpm5",
    families="MiniCPM5",
    blocks=(
        Block(opener=_FUNCTION.call_open, keep_opener=True, bodies=(_FUNCTION,), leftovers=(_FUNCTION.call_close,)),
    ),
    end_tokens=("<|im_end|>",),
    reasoning="qwen3",
    template_signs=("<function name=", "<param name="),
    experimental=True,
)
