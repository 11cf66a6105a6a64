"""``call:NAME{key:value}``: Gemma 4, FunctionGemma (F24, F25)."""

from __future__ import annotations

from toolcall.format import Format
from toolcall.syntax import Block, LooseCalls

GEMMA4 = Format(
    name="gemma4",
    families="Gemma 4",
    blocks=(
        Block(
            opener="<|tool_call>",
            bodies=(LooseCalls(lead="call:", quote_mark='<|"|>', closer="<tool_call|>"),),
            closers=("<tool_call|>",),
        ),
    ),
    end_tokens=("<turn|>", "<end_of_turn>"),
    reasoning="gemma4",
    own_markers_special=True,
    template_signs=("<|tool_call>",),
)

FUNCTION_GEMMA = Format(
    name="functiongemma",
    families="FunctionGemma",
    blocks=(
        Block(
            opener="<start_function_call>",
            bodies=(LooseCalls(lead="call:", quote_mark="<escape>", closer="<end_function_call>", typed_strings=True),),
            closers=("<end_function_call>",),
        ),
    ),
    end_tokens=("<end_of_turn>",),
    own_markers_special=True,
    template_signs=("<start_function_call>",),
)
