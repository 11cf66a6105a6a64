"""The result never depends on where the text was cut; no output raises, loses text or half delivers a call."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import toolcall
from tests.cases.text_cases import check_events
from tests.toolcall.conftest import scaled
from tests.toolcall.fuzzing import TOOLS, markers_of, partitions, random_arguments, random_output
from tests.toolcall.render_calls import RENDERERS, VARIANTS
from tests.toolcall.running import events_of, merged

OUTPUTS = 60
FORMATS = sorted(RENDERERS)


def random_options(name: str, rng: random.Random) -> dict[str, object]:
    fmt = toolcall.get_format(name)
    return {
        "reasoning": fmt.reasoning if rng.random() < 0.6 else None,
        "parallel_tool_calls": rng.random() < 0.9,
        "tool_choice": "none" if rng.random() < 0.05 else "auto",
        "rescue": rng.random() < 0.8,
        "separate_reasoning": rng.random() < 0.8,
        "prompt_suffix": rng.choice(("", "<think>\n", "</think>\n\n", "<|start|>assistant")),
        "finish": rng.choice(("stop", "stop", "length")),
    }


@pytest.mark.parametrize("name", FORMATS)
def test_fuzzed_outputs_agree_under_every_chunking(name: str) -> None:
    runs = 0
    for seed in range(scaled(OUTPUTS)):
        rng = random.Random(f"{name} {seed}")
        text, options = random_output(name, rng), random_options(name, rng)
        whole = events_of(name, [text], **options)
        assert not check_events(whole, {}, text), text
        for pieces in partitions(text, rng, 5):
            runs += 1
            assert merged(events_of(name, pieces, **options)) == merged(whole), (seed, pieces, options)
    print(f"{name}: {scaled(OUTPUTS)} outputs, {runs} chunkings")


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=scaled(12), deadline=None, derandomize=True)
@given(data=st.data())
def test_any_sequence_of_markers_and_text_agrees(name: str, data: st.DataObject) -> None:
    words = st.one_of(
        st.sampled_from(markers_of(name)), st.text(max_size=6), st.sampled_from(["write_file", "fs.now", "path"])
    )
    pieces = data.draw(st.lists(words, max_size=14))
    text = "".join(pieces)
    assert merged(events_of(name, list(text))) == merged(events_of(name, [text])) == merged(events_of(name, pieces))


@pytest.mark.parametrize("name", FORMATS)
def test_every_two_cuts_of_a_short_call(name: str) -> None:
    text = RENDERERS[name]([("get-it", {"zip": "1"})]) if name not in ("pythonic", "olmo3", "lfm2") else "[fs.now()]"
    whole = merged(events_of(name, [text]))
    step = 1 if scaled(100) >= 100 else 3
    for a in range(1, len(text), step):
        for b in range(a + 1, len(text), 7):
            assert merged(events_of(name, [text[:a], text[a:b], text[b:]])) == whole


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize("name", FORMATS)
def test_truncated_anywhere_no_text_is_lost_and_no_call_is_half(name: str, finish: str) -> None:
    rng = random.Random(name)
    for render in (r[name] for r in (RENDERERS, VARIANTS) if name in r):
        arguments = {**random_arguments(rng), "path": "a/b.py", "count": 12}
        harmony = render([("fs.now", {})]).startswith("<|")
        text = ("" if harmony else "Hi. ") + render([("write_file", arguments)])
        suffix = "<|start|>assistant" if name == "gpt_oss" else ""
        for cut in range(len(text) + 1):
            events = events_of(name, [text[:cut]], finish=finish, prompt_suffix=suffix, rescue=False)
            assert not check_events(events, {"engine_finish": "stop"}, text)
            answer = toolcall.fold(events)
            for call in answer.tool_calls:
                got = json.loads(call.arguments)
                assert got.items() <= arguments.items()
                assert finish == "stop" or got == arguments
            if not answer.tool_calls and finish == "stop":
                lost = without_layout(name, text[:cut])
                assert without_layout(name, answer.content) == lost, (cut, text[:cut])


def without_layout(name: str, text: str) -> str:
    """The text without tokens that are no content, and without white space (which may go with them)."""
    for token in (*toolcall.get_format(name).hidden, *toolcall.get_format(name).end_tokens):
        text = text.replace(token, "")
    return "".join(text.split())


@pytest.mark.parametrize("name", FORMATS)
def test_text_without_calls_is_kept_to_the_letter(name: str) -> None:
    """And no more of it is held back than the longest marker and the white space before it."""
    text = "\n A < b, [1] {2} `x` <to <too\n\n- é 日本 🚀\t|end|\n  ok <| [TOOL ] \n"
    for pieces in ([text], list(text)):
        assert toolcall.fold(events_of(name, pieces, prompt_suffix="</think>")).content == text
    parser = toolcall.OutputParser(toolcall.get_format(name), TOOLS)
    seen = ""
    longest = max(map(len, markers_of(name)))
    for i, char in enumerate("Plain words < and |more> of them, at length. " * 3):
        seen += "".join(e.text for e in parser.feed(char) if isinstance(e, toolcall.TextDelta))
        assert i + 1 - len(seen) <= longest + 2
