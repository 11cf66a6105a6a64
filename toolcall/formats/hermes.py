"""JSON in ``<tool_call>``: Qwen2.5, Qwen3, Hermes and many fine-tunes."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.rescue import FOREIGN_BODIES, NAME_FIRST
from toolcall.syntax import Block, JsonCalls, TaggedCalls

_BLOCK = Block(
    opener="<tool_call>",
    bodies=(JsonCalls(), *FOREIGN_BODIES[1:], NAME_FIRST),
    closers=("</tool_call>",),
    inner=("```json", "```"),
    prose=True,
    leftovers=("</tool_response>", "</tool>", "</tools>", "</function_call>", "</tool_calls>", "</toolcall>"),
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

_LONGCAT_TAGS = TaggedCalls(
    call_open="",
    name_end="\n",
    name_stops=("<longcat_arg_key>", "</longcat_tool_call>", "{", "("),
    header_stops=("<longcat_arg_value>",),
    param_open="<longcat_arg_key>",
    key_end="</longcat_arg_key>",
    value_open="<longcat_arg_value>",
    value_close="</longcat_arg_value>",
    trim_newlines=False,
    call_close="</longcat_tool_call>",
    next_open=("<longcat_tool_call>",),
    object_body=True,
    shared_close=True,
)
"""LongCat 2.0 writes a name and tags where its forerunner wrote JSON."""

LONGCAT = replace(
    HERMES,
    name="longcat",
    aliases=(),
    families="LongCat-Flash, LongCat 2.0",
    reasoning="longcat",
    blocks=(
        replace(
            _BLOCK,
            opener="<longcat_tool_call>",
            bodies=(*_BLOCK.bodies[:3], _LONGCAT_TAGS),
            closers=("</longcat_tool_call>",),
        ),
    ),
    template_signs=("<longcat_tool_call>",),
)
