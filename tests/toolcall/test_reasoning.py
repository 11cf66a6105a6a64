"""Reasoning is split first; its start state comes from the prompt; a call inside open reasoning is a draft or its end."""

from __future__ import annotations

import pytest

import toolcall
from tests.toolcall.running import events_of, merged
from toolcall.reasoning import REASONING_FORMATS, is_open
from toolcall.registry import get_reasoning

CALL = '<tool_call>\n{"name": "get-it", "arguments": {"zip": "1"}}\n</tool_call>'
BY_MARKERS = [f for f in REASONING_FORMATS if f.openers]


def read(text: str, reasoning: str = "qwen3", fmt: str = "hermes", **options: object) -> toolcall.ParsedOutput:
    finish = str(options.pop("finish", "stop"))
    whole = events_of(fmt, [text], finish, reasoning=reasoning, **options)
    assert merged(events_of(fmt, list(text), finish, reasoning=reasoning, **options)) == merged(whole)
    return toolcall.fold(whole)


@pytest.mark.parametrize("fmt", BY_MARKERS, ids=lambda f: f.name)
def test_every_pair_of_markers_splits(fmt: toolcall.ReasoningFormat) -> None:
    for opener, closer in zip(fmt.openers, fmt.closers):
        answer = read(f"{opener}\nhm < it\n{closer}\n\nHello.", fmt.name, prompt_suffix=closer)
        assert (answer.reasoning, answer.content) == ("hm < it", "Hello.")
        opened = read(f"hm\n{closer}Hello.", fmt.name, prompt_suffix=f"assistant\n{opener}\n")
        assert (opened.reasoning, opened.content) == ("hm", "Hello.")
        endless = read(f"{opener}hm\n", fmt.name, finish="length")
        assert (endless.reasoning, endless.content, endless.finish_reason) == ("hm", "", "stop")


@pytest.mark.parametrize(
    ("name", "suffix", "opened"),
    [
        ("qwen3", "", False),
        ("qwen3", "<|im_start|>assistant\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
        ("qwen3", "<|im_start|>assistant\n<think>\nso far", True),
        ("qwen3", "What does <think> mean?<|im_end|>\n<|im_start|>assistant\n", False),
        ("qwen3", "<think>a</think>b<|im_end|>\n<|im_start|>assistant\n<think>", True),
        ("deepseek_r1", "", True),
        ("deepseek_r1", "<｜Assistant｜>", True),
        ("deepseek_r1", "<｜Assistant｜></think>", False),
        ("deepseek_r1", "old</think>answer<｜end▁of▁sentence｜><｜User｜>q<｜Assistant｜>", True),
        ("deepseek_r1", "Think in <think>.<｜User｜>q<｜Assistant｜>", True),
        ("mistral", "[THINK]what?[/INST]", False),
        ("seed_oss", "<seed:think>", True),
    ],
)
def test_the_prompt_says_whether_reasoning_is_open(name: str, suffix: str, opened: bool) -> None:
    assert is_open(get_reasoning(name), suffix) is opened


def test_a_draft_call_stays_reasoning_and_the_call_after_it_is_one() -> None:
    answer = read(f"<think>maybe {CALL}? no.</think>\n{CALL.replace('1', '2')}")
    assert answer.reasoning == f"maybe {CALL}? no."
    assert [c.arguments for c in answer.tool_calls] == ['{"zip": "2"}']


def test_a_whole_call_ends_reasoning_that_never_closes() -> None:
    answer = read(f"<think>\nI go.\n{CALL}\n{CALL}")
    assert (answer.reasoning, answer.content, len(answer.tool_calls)) == ("I go.", "", 2)


@pytest.mark.parametrize(
    "text", ["a <tool_call> is a tag", "a <tool_call>{} b", CALL[:40], CALL.replace("get-it", "no-tool")]
)
def test_what_is_no_call_stays_reasoning(text: str) -> None:
    answer = read(f"<think>{text}")
    assert (answer.reasoning, answer.content, answer.tool_calls) == (text, "", ())


def test_a_call_cut_off_inside_reasoning_is_no_call() -> None:
    answer = read(f"<think>go {CALL[:50]}", finish="length")
    assert (answer.reasoning, answer.tool_calls) == (f"go {CALL[:50]}", ())


def test_reasoning_may_come_again_between_calls() -> None:
    answer = read(f"<think>one</think>{CALL}\n<think>two</think>\n{CALL}")
    assert (answer.reasoning, answer.content, len(answer.tool_calls)) == ("one\ntwo", "", 2)


def test_a_closer_without_opener_at_the_beginning_is_dropped() -> None:
    assert read("</think>\n\nHello.").content == "Hello."
    assert read("Hello </think> you").content == "Hello </think> you"


def test_an_opener_inside_text_is_text() -> None:
    assert read("Use <think> for thoughts.").content == "Use <think> for thoughts."


def test_unseparated_reasoning_keeps_its_markers_in_the_text() -> None:
    text = "\n<think>\n a \n</think>\n\nHello.\n"
    assert read(text, separate_reasoning=False).content == text
    draft = read(f"<think>{CALL}</think>x", separate_reasoning=False)
    assert (draft.content, draft.tool_calls) == (f"<think>{CALL}</think>x", ())
    ended = read(f"<think>a\n{CALL}", separate_reasoning=False)
    assert (ended.content, len(ended.tool_calls)) == ("<think>a", 1)


def test_reasoning_is_streamed() -> None:
    deltas = events_of("hermes", list("<think>one two</think>Hi."), reasoning="qwen3")
    assert sum(isinstance(e, toolcall.ReasoningDelta) for e in deltas) > 3


def test_reasoning_is_split_without_tools_too() -> None:
    answer = read(f"<think>{CALL}</think>{CALL}", tools=[])
    assert (answer.reasoning, answer.content) == (CALL, CALL)


HARMONY = "<|channel|>analysis<|message|>one<|end|><|start|>assistant<|channel|>analysis<|message|>two<|end|>"


def test_harmony_channels() -> None:
    text = f"{HARMONY}<|start|>assistant<|channel|>final<|message|>Hello!<|return|>"
    for suffix in ("<|start|>assistant", ""):
        answer = read(text, "gpt_oss", "gpt_oss", prompt_suffix=suffix)
        assert (answer.reasoning, answer.content) == ("one\ntwo", "Hello!")
    kept = read(text, "gpt_oss", "gpt_oss", prompt_suffix="<|start|>assistant", separate_reasoning=False)
    assert kept.content.startswith("<|channel|>analysis<|message|>one<|end|>")
    assert kept.reasoning == ""


def test_harmony_text_without_any_header_is_text() -> None:
    assert read(" Just text.\n", "gpt_oss", "gpt_oss").content == " Just text.\n"
    assert read("Just text.", "gpt_oss", "gpt_oss", prompt_suffix="<|start|>assistant").content == "Just text."


def test_harmony_call_to_an_undeclared_tool_is_text() -> None:
    text = "<|channel|>commentary to=browser.search<|message|>{}<|call|>"
    answer = read(text, "gpt_oss", "gpt_oss", prompt_suffix="<|start|>assistant")
    assert (answer.content, answer.tool_calls) == (text, ())
