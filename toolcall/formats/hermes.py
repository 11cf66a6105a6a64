"""JSON in ``<tool_call>``: Qwen2.5, Qwen3, Hermes and many fine-tunes (F1, F2)."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.rescue import FUNCTION_TAGS, NAMED_CALLS
from toolcall.syntax import Block, JsonCalls

_BLOCK = Block(
    opener="<tool_call>",
    bodies=(JsonCalls(), replace(FUNCTION_TAGS, foreign=True), replace(NAMED_CALLS, foreign=True)),
    closers=("</tool_call>",),
    inner=("```json", "```"),
)

HERMES = Format(
    name="hermes",
    aliases=("qwen", "qwen25", "qwen2d5", "qwen3", "granite4", "trinity"),
    families="Qwen2.5, QwQ, Qwen3 (not Coder), Hermes 2 Pro and 3, Granite 4, Arcee Trinity",
    blocks=(_BLOCK,),
    end_tokens=("<|im_end|>", "<|endoftext|>", "<|eot_id|>"),
    reasoning="qwen3",
    template_signs=("<tool_call>",),
)

LONGCAT = replace(
    HERMES,
    name="longcat",
    aliases=(),
    families="LongCat",
    blocks=(replace(_BLOCK, opener="<longcat_tool_call>", closers=("</longcat_tool_call>",)),),
    template_signs=("<longcat_tool_call>",),
)
