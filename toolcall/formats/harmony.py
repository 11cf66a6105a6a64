"""Messages with headers: gpt-oss harmony, muse_glimmer (F18, F29)."""

from __future__ import annotations

from dataclasses import replace

from toolcall.format import Format
from toolcall.formats.invoke import INVOKE
from toolcall.syntax import MessageProtocol

GPT_OSS = Format(
    name="gpt_oss",
    aliases=("gpt-oss", "openai", "harmony"),
    families="gpt-oss 20B, 120B",
    protocol=MessageProtocol(
        starts=("<|start|>", "<|channel|>"),
        message="<|message|>",
        ends=("<|end|>", "<|call|>", "<|return|>"),
        reasoning_channels=("analysis",),
    ),
    reasoning="gpt_oss",
    own_markers_special=True,
    template_signs=("<|channel|>", "<|message|>"),
)

MUSE_GLIMMER = Format(
    name="muse_glimmer",
    families="muse_glimmer",
    protocol=MessageProtocol(
        starts=("<|start|>",),
        message="<|message|>",
        ends=("<|eom|>", "<|eot|>"),
        reasoning_to=("self",),
        content_to=("user",),
        body=replace(
            INVOKE,
            call_open="<atem:invoke name=",
            param_open="<atem:parameter name=",
            value_close="</atem:parameter>",
            call_close="</atem:invoke>",
            next_open=("<atem:invoke", "</atem:function_calls>"),
        ),
        body_wrapper=("<atem:function_calls>", "</atem:function_calls>"),
    ),
    reasoning="gpt_oss",
    own_markers_special=True,
    template_signs=("<atem:function_calls>",),
    experimental=True,
)
