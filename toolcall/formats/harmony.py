"""Messages with headers: gpt-oss harmony, muse_glimmer."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.formats.invoke import prefixed
from toolcall.syntax import Block, MessageProtocol

GPT_OSS = Format(
    name="gpt_oss",
    aliases=("gpt-oss", "openai", "harmony"),
    families="gpt-oss 20B, 120B",
    protocol=MessageProtocol(
        starts=("<|start|>", "<|channel|>"),
        message="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        reasoning_channels=("analysis",),
        content_to=("user",),
    ),
    end_tokens=("<|end|>", "<|call|>", "<|return|>"),
    reasoning="gpt_oss",
    own_markers_special=True,
    template_signs=("<|channel|>", "<|message|>"),
)

_WRAPPER = ("<atem:function_calls>", "</atem:function_calls>")
_CALLS = replace(prefixed("atem:"), next_open=("<atem:invoke", _WRAPPER[1]))

MUSE_GLIMMER = Format(
    name="muse_glimmer",
    families="muse_glimmer",
    blocks=(Block(opener=_WRAPPER[0], bodies=(_CALLS,), closers=_WRAPPER[1:]),),
    protocol=MessageProtocol(
        starts=("<|start|>",),
        message="<|message|>",
        ends=("<|eom|>", "<|eot|>"),
        reasoning_to=("self",),
        content_to=("user",),
        body=_CALLS,
        body_wrapper=_WRAPPER,
    ),
    end_tokens=("<|eom|>", "<|eot|>"),
    reasoning="gpt_oss",
    own_markers_special=True,
    template_signs=("<atem:function_calls>",),
    experimental=True,
)
