"""``call:NAME{key:value}``: Gemma 4, FunctionGemma."""

from __future__ import annotations

from toolcall.format import Format
from toolcall.syntax import Block, JsonCalls, LooseCalls

_CALLS = LooseCalls(lead="call:", quote_mark='<|"|>', opener="<|tool_call>", closer="<tool_call|>")
GEMMA4 = Format(
    name="gemma4",
    families="Gemma 4",
    blocks=(
        Block(
            opener="<|tool_call>",
            bodies=(_CALLS, JsonCalls(foreign=True)),
            closers=("<tool_call|>",),
        ),
    ),
    bare=(Block(opener="call:", bodies=(_CALLS,), closers=("<tool_call|>",), rescued=True, hold=True),),
    end_tokens=("<turn|>", "<end_of_turn>", "<|tool_response>"),
    reasoning="gemma4",
    own_markers_special=True,
    template_signs=("<|tool_call>",),
)

_FUNCTION = LooseCalls(
    lead="call:",
    quote_mark="<escape>",
    opener="<start_function_call>",
    closer="<end_function_call>",
    typed_strings=True,
)
FUNCTION_GEMMA = Format(
    name="functiongemma",
    families="FunctionGemma",
    blocks=(
        Block(
            opener="<start_function_call>",
            bodies=(_FUNCTION,),
            closers=("<end_function_call>",),
        ),
    ),
    bare=(Block(opener="call:", bodies=(_FUNCTION,), closers=("<end_function_call>",), rescued=True, hold=True),),
    end_tokens=("<end_of_turn>", "<start_function_response>"),
    own_markers_special=True,
    template_signs=("<start_function_call>",),
)
