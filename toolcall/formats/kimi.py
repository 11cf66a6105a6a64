"""Kimi K2 and K3."""

from __future__ import annotations

import string
from dataclasses import replace

from toolcall.format import Format
from toolcall.syntax import Block, KimiCalls, TaggedCalls

_CALLS = KimiCalls(
    call_open="<|tool_call_begin|>",
    arguments_open="<|tool_call_argument_begin|>",
    close="<|tool_call_end|>",
)
_SECTION_BEGINS = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
_SECTION_ENDS = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")

KIMI_K2 = Format(
    name="kimi_k2",
    aliases=("kimi", "kimi_k25"),
    families="Kimi K2, K2-Thinking, K2.5",
    blocks=(
        *(
            Block(opener=o, bodies=(_CALLS, replace(_CALLS, call_open="", foreign=True)), closers=_SECTION_ENDS)
            for o in _SECTION_BEGINS
        ),
        Block(opener="<|tool_call_begin|>", keep_opener=True, bodies=(_CALLS,), closers=_SECTION_ENDS),
    ),
    bare=(
        Block(
            opener="",
            bodies=(replace(_CALLS, call_open="", bare=True),),
            closers=_SECTION_ENDS,
            triggers=string.ascii_letters + "_",
            rescued=True,
            hold=True,
        ),
    ),
    hidden=(*_SECTION_BEGINS, *_SECTION_ENDS, "<|tool_call_end|>"),
    end_tokens=("<|im_end|>",),
    reasoning="kimi",
    id_style="kimi",
    own_markers_special=True,
    template_signs=("<|tool_calls_section_begin|>",),
)


def _open(name: str) -> str:
    return f"<|open|>{name}"


def _close(name: str) -> str:
    return f"<|close|>{name}<|sep|>"


_K3_CALLS = TaggedCalls(
    call_open=_open("call "),
    name_end="<|sep|>",
    param_open=_open("argument "),
    key_end="<|sep|>",
    value_close=_close("argument"),
    call_close=_close("call"),
    next_open=(_open("call"), _close("tools")),
    trim_newlines=False,
)
KIMI_K3 = Format(
    name="kimi_k3",
    families="Kimi K3",
    blocks=(
        Block(opener=_open("tools<|sep|>"), closers=(_close("tools"),), bodies=(_K3_CALLS,)),
        Block(opener=_K3_CALLS.call_open, keep_opener=True, closers=(_close("tools"),), bodies=(_K3_CALLS,)),
    ),
    hidden=(_open("response<|sep|>"), _close("response"), _close("message")),
    end_tokens=("<|im_end|>", "<|end_of_msg|>"),
    reasoning="kimi_k3",
    id_style="kimi",
    own_markers_special=True,
    template_signs=("<|open|>", "<|sep|>"),
    experimental=True,
)
