"""``<function=f><parameter=k>v</parameter></function>`` in ``<tool_call>``: Qwen3-Coder and relatives."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.rescue import FOREIGN_BODIES, FUNCTION_TAGS, NAME_FIRST
from toolcall.syntax import Block

_OTHERS = (FOREIGN_BODIES[0], *FOREIGN_BODIES[2:], NAME_FIRST)
_WRAPPED = Block(
    opener="<tool_call>",
    bodies=(FUNCTION_TAGS, *_OTHERS),
    closers=("</tool_call>",),
    prose=True,
    leftovers=("</function>", "</parameter>", "</function_invocation>", "</tool_calls>", "</toolcall>"),
)
_LONE = Block(
    opener="<function=",
    keep_opener=True,
    bodies=(FUNCTION_TAGS,),
    closers=("</tool_call>",),
    leftovers=_WRAPPED.leftovers,
)

QWEN3_CODER = Format(
    name="qwen3_coder",
    aliases=("qwen3coder", "qwen3_xml", "step3p5", "mimo", "nemotron_v3", "interns2-preview", "qwen3_5", "qwen35"),
    families="Qwen3-Coder, Qwen3-Next-Coder, Qwen3.5, Step-3.5, MiMo, Nemotron 3",
    blocks=(_WRAPPED, _LONE),
    end_tokens=("<|im_end|>", "<|endoftext|>"),
    reasoning="qwen3",
    template_signs=("<function=", "<parameter="),
)

_SEED_TAGS = replace(FUNCTION_TAGS, next_open=("<function=", "</seed:tool_call>"))
SEED_OSS = Format(
    name="seed_oss",
    families="Seed-OSS",
    blocks=(
        replace(
            _WRAPPED,
            opener="<seed:tool_call>",
            closers=("</seed:tool_call>",),
            bodies=(_SEED_TAGS, *_OTHERS),
        ),
        replace(_LONE, bodies=(_SEED_TAGS,), closers=("</seed:tool_call>",)),
    ),
    end_tokens=("<seed:eos>",),
    reasoning="seed_oss",
    template_signs=("<seed:tool_call>",),
)
