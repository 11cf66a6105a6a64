"""``<arg_key>`` and ``<arg_value>``: GLM, Ling, Laguna, Hunyuan."""

from __future__ import annotations

import string
from dataclasses import replace

from toolcall.format import Format
from toolcall.rescue import ARGUMENT_TAGS, FOREIGN_BODIES
from toolcall.syntax import Block, TaggedCalls

GLM45 = Format(
    name="glm45",
    aliases=("glm", "glm4", "glm47", "glm_4_5", "ling3", "poolside_v1"),
    families="GLM-4.5, 4.6, 4.7, GLM-5, Ling 3, poolside Laguna",
    blocks=(
        Block(
            opener="<tool_call>",
            bodies=(ARGUMENT_TAGS, *FOREIGN_BODIES),
            closers=("</tool_call>",),
            single=True,
        ),
    ),
    bare=(
        Block(
            opener="",
            bodies=(replace(ARGUMENT_TAGS, name_stops=("<arg_key>",), object_body=False, unmarked=True),),
            triggers=string.ascii_letters + "_",
            rescued=True,
            hold=True,
        ),
    ),
    end_tokens=("<|endoftext|>", "<|user|>", "<|observation|>"),
    reasoning="glm45",
    template_signs=("<arg_key>",),
)


def _hunyuan(suffix: str) -> tuple[Block, ...]:
    def mark(name: str) -> str:
        return f"<{name}{suffix}>"

    calls = TaggedCalls(
        call_open=mark("tool_call"),
        name_end=mark("tool_sep"),
        name_stops=(mark("arg_key"), mark("/tool_call"), "\n"),
        header_stops=(mark("arg_value"),),
        param_open=mark("arg_key"),
        key_end=mark("/arg_key"),
        value_open=mark("arg_value"),
        value_close=mark("/arg_value"),
        trim_newlines=False,
        call_close=mark("/tool_call"),
        next_open=(mark("tool_call"), mark("/tool_calls")),
        object_body=True,
    )
    late = (calls.call_close, calls.value_close)
    return (
        Block(opener=mark("tool_calls"), bodies=(calls,), closers=(mark("/tool_calls"),), leftovers=late),
        Block(
            opener=mark("tool_call"),
            keep_opener=True,
            bodies=(calls,),
            closers=(mark("/tool_calls"),),
            leftovers=late,
        ),
    )


HUNYUAN = Format(
    name="hunyuan",
    aliases=("hy_v3", "hy3"),
    families="Hunyuan Hy3",
    blocks=(*_hunyuan(""), *_hunyuan(":opensource")),
    reasoning="qwen3",
    template_signs=("<tool_sep", "<arg_key"),
    experimental=True,
)
