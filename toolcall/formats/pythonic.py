"""Calls as Python: Llama 4 and 3.2, ToolACE, OLMo 3, LFM2."""

from __future__ import annotations

import string

from toolcall.format import Format
from toolcall.rescue import FOREIGN_BODIES, bare_list
from toolcall.syntax import Block, JsonCalls, PythonCalls
from toolcall.syntax.block import FENCES
from toolcall.syntax.fenced import FencedBlock

_CALLS = PythonCalls()
_LIST = Block(opener="[", bodies=(PythonCalls(in_list=True),), closers=("]",), listed=True)


def _fenced(*own: Block) -> tuple[Block, ...]:
    return tuple(
        FencedBlock(
            opener=fence,
            bodies=(JsonCalls(), _CALLS),
            closers=("```",),
            rescued=True,
            hold=True,
            strict=True,
            own=own,
        )
        for fence in ("```python", *FENCES)
    )


_ALONE = Block(
    opener="",
    bodies=(PythonCalls(alone=True),),
    triggers=string.ascii_letters + "_",
    rescued=True,
    hold=True,
    strict=True,
)

_MARKED = Block(opener="<|python_start|>", bodies=(_CALLS, JsonCalls()), closers=("<|python_end|>",))
PYTHONIC = Format(
    name="pythonic",
    aliases=("llama4_pythonic", "llama4"),
    families="Llama 4, Llama 3.2 1B and 3B, ToolACE",
    blocks=(_MARKED, _LIST),
    bare=(bare_list(JsonCalls()), *_fenced(_MARKED), _ALONE),
    hidden=("<|python_end|>",),
    end_tokens=("<|eot|>", "<|eom|>", "<|eot_id|>", "<|eom_id|>"),
    template_signs=("<|python_start|>",),
    other_signs=(("[func_name1(",),),
)

_LINES = Block(opener="<function_calls>", bodies=(_CALLS, *FOREIGN_BODIES), closers=("</function_calls>",), listed=True)
OLMO3 = Format(
    name="olmo3",
    families="OLMo 3",
    blocks=(_LINES,),
    bare=_fenced(_LINES),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    reasoning="qwen3",
    template_signs=("<function_calls>",),
)

_LFM2 = Block(opener="<|tool_call_start|>", bodies=(JsonCalls(), _CALLS), closers=("<|tool_call_end|>",))
LFM2 = Format(
    name="lfm2",
    families="LiquidAI LFM2, LFM2.5",
    blocks=(_LFM2,),
    bare=(bare_list(JsonCalls(), _CALLS, late=("<|tool_call_end|>", "</tool_call>")), *_fenced(_LFM2)),
    end_tokens=("<|im_end|>",),
    reasoning="qwen3",
    own_markers_special=True,
    template_signs=("<|tool_call_start|>",),
)
