"""The formats by name, and the choice of one by a model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from toolcall.format import Format, ReasoningFormat
from toolcall.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V4, DEEPSEEK_V31, DEEPSEEK_V32
from toolcall.formats.gemma import FUNCTION_GEMMA, GEMMA4
from toolcall.formats.glm import GLM45, HUNYUAN
from toolcall.formats.harmony import GPT_OSS, MUSE_GLIMMER
from toolcall.formats.hermes import HERMES, LONGCAT
from toolcall.formats.invoke import DOTS, MINICPM5, MINIMAX_M2, MINIMAX_M3, STEP3
from toolcall.formats.json_wrapped import (
    APERTUS,
    COHERE,
    ERNIE45,
    GIGACHAT3,
    GRANITE,
    GRANITE_20B_FC,
    HUNYUAN_A13B,
    INKLING,
    INTERNLM,
    JAMBA,
    PHI4_MINI,
    XLAM,
)
from toolcall.formats.kimi import KIMI_K2, KIMI_K3
from toolcall.formats.llama import LLAMA3_JSON
from toolcall.formats.mistral import MISTRAL
from toolcall.formats.pythonic import LFM2, OLMO3, PYTHONIC
from toolcall.formats.qwen3_coder import QWEN3_CODER, SEED_OSS
from toolcall.reasoning import REASONING_FORMATS

FORMATS: tuple[Format, ...] = (
    HERMES,
    LONGCAT,
    QWEN3_CODER,
    SEED_OSS,
    LLAMA3_JSON,
    PYTHONIC,
    OLMO3,
    LFM2,
    MISTRAL,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    GLM45,
    HUNYUAN,
    KIMI_K2,
    KIMI_K3,
    MINIMAX_M2,
    MINIMAX_M3,
    GPT_OSS,
    STEP3,
    INTERNLM,
    APERTUS,
    COHERE,
    GIGACHAT3,
    GEMMA4,
    FUNCTION_GEMMA,
    MINICPM5,
    DOTS,
    INKLING,
    MUSE_GLIMMER,
    GRANITE_20B_FC,
    GRANITE,
    JAMBA,
    HUNYUAN_A13B,
    ERNIE45,
    PHI4_MINI,
    XLAM,
)


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "_")


_BY_NAME: Mapping[str, Format] = MappingProxyType({_plain(n): f for f in FORMATS for n in (f.name, *f.aliases)})
_REASONING: Mapping[str, ReasoningFormat] = MappingProxyType(
    {_plain(n): f for f in REASONING_FORMATS for n in (f.name, *f.aliases)}
)


NONE = Format(name="none", families="no calls are read: tools only stand in the prompt", reads_calls=False)


def get_format(name: str) -> Format:
    """The format of this name or alias, ``none`` for one that reads no calls; ValueError names the known ones."""
    if _plain(name) == NONE.name:
        return NONE
    found = _BY_NAME.get(_plain(name))
    if found is None:
        raise ValueError(f"unknown tool-call format {name!r}; known: {', '.join(f.name for f in FORMATS)}")
    return found


def get_reasoning(name: str) -> ReasoningFormat:
    """The reasoning format of this name or alias; ValueError names the known ones."""
    found = _REASONING.get(_plain(name))
    if found is None:
        raise ValueError(f"unknown reasoning format {name!r}; known: {', '.join(f.name for f in REASONING_FORMATS)}")
    return found


def list_formats() -> tuple[Format, ...]:
    return FORMATS


@dataclass(frozen=True, slots=True)
class Detected:
    """What a model's files say; why is for people. Where they show no tools the format is the commonest one."""

    format: Format
    reasoning: ReasoningFormat | None
    why: str


_OVERRULES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "hermes": ("qwen3_coder", "glm45", "granite", "ernie45", "hunyuan"),
        "deepseek_v31": ("deepseek_v3",),
        "jamba": ("hunyuan", "hunyuan_a13b"),
        "qwen3_coder": ("seed_oss",),
        "llama3_json": ("pythonic",),
        "granite": ("phi4_mini_json",),
    }
)
"""Formats whose signs are part of another's: the other, more telling one wins."""


def detect(chat_template: str | None, special_tokens: Sequence[str] = ()) -> Detected:
    """Chooses the formats by strings that stand in the chat template, else in the vocabulary's special tokens."""
    template = chat_template or ""
    vocabulary = "\n".join(special_tokens)
    for text, where in ((template, "the chat template"), (vocabulary, "the special tokens")):
        if not text:
            continue
        found = {f.name: (f, signs) for f in FORMATS if (signs := _signs_in(text, f))}
        for name, better in _OVERRULES.items():
            if found.keys() & set(better):
                found.pop(name, None)
        if found:
            best, signs = max(found.values(), key=lambda item: (len(item[1]), max(map(len, item[1]))))
            reasoning = _detect_reasoning(template, best)
            also = f"; reasoning {reasoning.name}" if reasoning else "; no reasoning markers"
            return Detected(best, reasoning, f"tool format {best.name}: {where} has {' and '.join(signs)}{also}")
    what = "the template renders tools in no known way" if "tools" in template else "no tool markers are shown"
    return Detected(HERMES, _detect_reasoning(template, None), f"tool format hermes: {what}")


def _signs_in(text: str, fmt: Format) -> tuple[str, ...]:
    groups = (fmt.template_signs, *fmt.other_signs)
    return next((g for g in groups if g and all(sign in text for sign in g)), ())


def _detect_reasoning(template: str, fmt: Format | None) -> ReasoningFormat | None:
    if fmt is not None and fmt.reasoning:
        own = get_reasoning(fmt.reasoning)
        if not own.openers or any(m in template for m in (*own.openers, *own.closers)):
            return own
    for other in REASONING_FORMATS:
        if other.openers and any(o in template for o in other.openers) and any(c in template for c in other.closers):
            return other
    return None
