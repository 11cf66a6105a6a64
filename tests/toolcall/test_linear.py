"""The work grows with the text and no faster, on the worst texts; counted in calls of functions, not in time."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

import toolcall
from tests.toolcall.adversarial import adversarial
from tests.toolcall.conftest import scaled
from tests.toolcall.fuzzing import TOOLS
from tests.toolcall.render_calls import RENDERERS
from toolcall.lexer import Lexer

SIZE = 700 if scaled(10) < 100 else 1_400
"""A value waits for up to 512 characters behind it, which smaller texts do not have."""
MAX_RATIO = 2.3
SOME = ("hermes", "qwen3_coder", "deepseek_v3", "glm45", "kimi_k2", "mistral", "pythonic", "gpt_oss", "gemma4", "xlam")


def work(name: str, text: str, size: int) -> tuple[int, int]:
    """(calls of Python and C functions, characters copied into the lexer's buffer)."""
    fmt = toolcall.get_format(name)
    reasoning = toolcall.get_reasoning(fmt.reasoning) if fmt.reasoning else None
    parser = toolcall.OutputParser(fmt, TOOLS, reasoning=reasoning)
    calls = copied = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls, copied
        calls += event in ("call", "c_call")
        if event == "return" and frame.f_code in (Lexer.append.__code__, Lexer.rewind.__code__):
            lexer = frame.f_locals["self"]
            copied += len(lexer.buf) if lexer.pos == 0 else 0

    sys.setprofile(count)
    try:
        for i in range(0, len(text), size):
            parser.feed(text[i : i + size])
        parser.finish()
    finally:
        sys.setprofile(None)
    return calls, copied


@pytest.mark.parametrize("name", SOME if scaled(10) < 100 else sorted(RENDERERS))
def test_twice_the_text_is_twice_the_work(name: str) -> None:
    for label, build in adversarial(name).items():
        short, long = build(SIZE), build(2 * SIZE)
        for size in (1, len(long)):
            (calls, copied), (more_calls, more_copied) = work(name, short, size), work(name, long, size)
            ratio = len(long) / len(short)
            assert more_calls <= calls * ratio * MAX_RATIO / 2 + 500, (label, size, calls, more_calls)
            assert more_copied <= copied * ratio * MAX_RATIO / 2 + 2_000, (label, size, copied, more_copied)


@pytest.mark.parametrize("name", SOME)
def test_adversarial_text_is_never_lost(name: str) -> None:
    for label, build in adversarial(name).items():
        text = build(800)
        answer = toolcall.fold(
            [*(parser := toolcall.OutputParser(toolcall.get_format(name), TOOLS)).feed(text), *parser.finish()]
        )
        if not answer.tool_calls:
            tokens = (*toolcall.get_format(name).hidden, *toolcall.get_format(name).end_tokens)
            assert answer.content == text or any(t in text for t in tokens) or not text.strip(), label
