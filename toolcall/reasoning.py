"""How model families mark their reasoning."""

from __future__ import annotations

import re

from toolcall.format import ReasoningFormat

_NEW_TURN = re.compile(r"<[|｜]|<start_of_turn>|<turn|\[/?INST\]|\]~[b!]\[")
"""Something that begins another turn of the prompt."""

_OPEN, _CLOSE = ("<think>",), ("</think>",)

REASONING_FORMATS: tuple[ReasoningFormat, ...] = (
    ReasoningFormat(
        name="qwen3",
        families="Qwen3, QwQ, Qwen3.5, Hermes 4, MiMo, Nemotron, Hunyuan, OLMo 3",
        openers=_OPEN,
        closers=_CLOSE,
        aliases=("think", "mimo", "nano_v3", "nemotron_v3", "nemotron_3", "hunyuan", "hunyuan_a13b", "olmo3", "holo2"),
    ),
    ReasoningFormat(
        name="deepseek_r1",
        families="DeepSeek-R1, its distillations, Step3, Qwen3-Thinking: the text begins inside the reasoning",
        openers=_OPEN,
        closers=_CLOSE,
        starts_open=True,
        aliases=("step3", "interns1", "intern_s1", "qwen3_thinking", "ernie45", "step3p5"),
    ),
    ReasoningFormat(
        name="deepseek_v3",
        families="DeepSeek-V3.1, V3.2, V4",
        openers=_OPEN,
        closers=_CLOSE,
        aliases=("deepseek_v31", "deepseek_v32", "deepseek_v4"),
    ),
    ReasoningFormat(
        name="glm45", families="GLM-4.5 to GLM-5", openers=_OPEN, closers=_CLOSE, aliases=("glm", "glm47", "ling3")
    ),
    ReasoningFormat(
        name="kimi",
        families="Kimi K2-Thinking, K2.5; Kimi-VL-Thinking",
        openers=("<think>", "◁think▷"),
        closers=("</think>", "◁/think▷"),
        aliases=("kimi_k2", "kimi_k25"),
    ),
    ReasoningFormat(
        name="kimi_k3",
        families="Kimi K3",
        openers=("<|open|>think<|sep|>",),
        closers=("<|close|>think<|sep|>",),
        implied_closers=("<|open|>response<|sep|>", "<|close|>response<|sep|>"),
        experimental=True,
    ),
    ReasoningFormat(
        name="gpt_oss",
        families="gpt-oss: messages of channel analysis",
        openers=(),
        closers=(),
        aliases=("openai", "openai_gptoss", "harmony"),
    ),
    ReasoningFormat(
        name="minimax",
        families="MiniMax M2, M3: interleaved thinking",
        openers=_OPEN,
        closers=_CLOSE,
        aliases=("minimax_m2", "minimax_m3", "minimax_m2_append_think"),
    ),
    ReasoningFormat(
        name="mistral",
        families="Magistral",
        openers=("[THINK]", "<think>"),
        closers=("[/THINK]", "</think>"),
        aliases=("magistral",),
    ),
    ReasoningFormat(
        name="granite",
        families="Granite 3.2, 3.3",
        openers=("Here is my thought process:", "Here's my thought process:", "<think>"),
        closers=("Here is my response:", "Here's my response:", "</think>"),
    ),
    ReasoningFormat(
        name="longcat",
        families="LongCat-Flash-Thinking",
        openers=("<longcat_think>", "<think>"),
        closers=("</longcat_think>", "</think>"),
    ),
    ReasoningFormat(name="seed_oss", families="Seed-OSS", openers=("<seed:think>",), closers=("</seed:think>",)),
    ReasoningFormat(
        name="cohere",
        families="Cohere Command A Reasoning",
        openers=("<|START_THINKING|>",),
        closers=("<|END_THINKING|>",),
        aliases=("cohere_command4",),
    ),
    ReasoningFormat(
        name="apertus",
        families="Apertus",
        openers=("<|inner_prefix|>",),
        closers=("<|inner_suffix|>",),
        experimental=True,
    ),
    ReasoningFormat(
        name="gemma4",
        families="Gemma 4",
        openers=("<|channel>thought",),
        closers=("<channel|>",),
        experimental=True,
    ),
)


def is_open(fmt: ReasoningFormat, prompt_suffix: str) -> bool:
    """Whether the prompt ends inside the reasoning: behind an opener, with neither closer nor another turn after."""
    opened, opener = max(((prompt_suffix.rfind(o), o) for o in fmt.openers), default=(-1, ""))
    closed, closer = max(((prompt_suffix.rfind(c), c) for c in fmt.closers), default=(-1, ""))
    last, mark = max((opened, opener), (closed, closer))
    if last < 0 or _NEW_TURN.search(prompt_suffix, last + len(mark)):
        return fmt.starts_open
    return opened > closed
