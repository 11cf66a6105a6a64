"""How model families mark their reasoning."""

from __future__ import annotations

from toolcall.format import ReasoningFormat

_THINK = {"openers": ("<think>",), "closers": ("</think>",)}

REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(
        name="qwen3",
        families="Qwen3, QwQ, Qwen3.5, Hermes 4, Step, Nemotron",
        openers=("<think>",),
        closers=("</think>",),
        aliases=("think", "qwen3-thinking", "step3", "nano_v3", "nemotron_3", "hunyuan", "ernie45", "holo2", "mimo"),
    ),
    ReasoningFormat(
        name="deepseek_r1",
        families="DeepSeek-R1 and its distillations: the text begins inside the reasoning",
        openers=("<think>",),
        closers=("</think>",),
        starts_open=True,
        aliases=("deepseek-r1", "interns1", "step3p5"),
    ),
    ReasoningFormat(
        name="deepseek_v3",
        families="DeepSeek-V3.1, V3.2, V4",
        openers=("<think>",),
        closers=("</think>",),
        aliases=("deepseek-v3", "deepseek_v31", "deepseek_v4"),
    ),
)
