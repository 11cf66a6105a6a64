"""Matchers: masks, forced tokens, copies, and grammars that sleep until a trigger."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from engine.grammar.triggered import TAIL_BYTES, match_backwards
from engine.messages import GrammarSpec
from tests.engine.grammar.vocabulary import EOS, VOCAB_SIZE, backend, decode, encode

WORDS = (VOCAB_SIZE + 31) // 32
CALL = r'start: "<tool_call>" /\s*/ %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]} /\s*/ "</tool_call>"'
TRIGGERED = GrammarSpec(kind="lark", source=CALL, triggers=("<tool_call>",))


def allowed(matcher) -> set[int] | None:
    mask = np.zeros(WORDS, dtype=np.int32)
    if not matcher.fill_mask(mask):
        return None
    return set(np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB_SIZE])[0].tolist())


def matcher_for(spec: GrammarSpec):
    engine = backend()
    return engine.matcher(engine.compile(spec))


def test_end_is_allowed_only_when_the_grammar_is_complete():
    matcher = matcher_for(GrammarSpec(kind="choice", source='["ab", "abc"]'))
    assert EOS not in allowed(matcher)
    for token in encode("ab"):
        assert matcher.accept(token)
    assert EOS in allowed(matcher)
    assert matcher.accept(encode("c")[0])
    assert matcher.terminated
    assert allowed(matcher) == {EOS}


def test_a_refused_token_changes_nothing():
    matcher = matcher_for(GrammarSpec(kind="regex", source="[0-9]{3}"))
    assert matcher.accept(encode("1")[0])
    before = allowed(matcher)
    assert not matcher.accept(encode("x")[0])
    assert allowed(matcher) == before


def test_forced_tokens_are_the_only_continuation():
    matcher = matcher_for(
        GrammarSpec(kind="lark", source=r'start: "<tool_call>\n{\"name\": \"" ("get_weather" | "get_time")')
    )
    forced = matcher.forced_tokens()
    assert decode(forced) == '<tool_call>\n{"name": "get'
    for token in forced:
        assert allowed(matcher) is not None
        assert matcher.accept(token)
    assert matcher.forced_tokens() == encode("_")[:0] or decode(matcher.forced_tokens()) == "_"


@pytest.mark.parametrize(
    "spec",
    [TRIGGERED, GrammarSpec(kind="lark", source=CALL), GrammarSpec(kind="lark", source=CALL, start_after="</think>")],
)
def test_a_copy_goes_on_as_its_original_does_and_changes_nothing_in_it(spec):
    text = '<tool_call>\n{"a": 12}\n</tool_call>'
    if spec.triggers:
        text = f"say {text} and {text} so"
    if spec.start_after:
        text = f"hm {{ </think>{text}"
    matcher, tokens = matcher_for(spec), [*encode(text), EOS]
    copies, masks = [], []
    rng = random.Random(5)
    for token in tokens:
        copies.append(matcher.copy())
        masks.append(allowed(matcher))
        stray = matcher.copy()
        while stray.accept(rng.choice(tokens)) and rng.random() < 0.9:
            allowed(stray)
        assert matcher.accept(token)
    ended = allowed(matcher), matcher.terminated
    for at in rng.sample(range(len(tokens)), len(tokens)):
        for token, mask in zip(tokens[at:], masks[at:], strict=True):
            assert allowed(copies[at]) == mask
            assert copies[at].accept(token)
        assert (allowed(copies[at]), copies[at].terminated) == ended


def test_free_text_costs_no_mask_until_the_trigger_and_after_the_call():
    matcher = matcher_for(TRIGGERED)
    for token in encode('Text with { and "quotes". '):
        assert allowed(matcher) is None
        assert matcher.accept(token)
    for token in encode("<tool_call>"):
        assert matcher.accept(token)
    assert encode("x")[0] not in allowed(matcher)
    for token in encode('{"a":1}</tool_call>'):
        assert token in allowed(matcher)
        assert matcher.accept(token)
    assert allowed(matcher) is None
    assert not matcher.terminated


def test_a_trigger_is_met_in_pretty_printed_json():
    spec = GrammarSpec(
        kind="lark",
        source=r'start: "{" WS? "\"name\"" WS? ":" WS? "\"f\"" WS? "," WS? "\"arguments\"" WS? ":" WS? %json {"type": "object", "properties": {}, "additionalProperties": false} WS? "}"'
        + "\nWS: /[ \\n]+/\n",
        triggers=('{"name":"f","arguments"',),
    )
    matcher = matcher_for(spec)
    for token in encode('Here:\n```json\n{\n    "name": "f",\n    "arguments": '):
        assert matcher.accept(token)
    permitted = allowed(matcher)
    assert encode("{")[0] in permitted
    assert encode("x")[0] not in permitted


def test_start_after_sleeps_through_reasoning():
    matcher = matcher_for(GrammarSpec(kind="choice", source='["yes", "no"]', start_after="</think>"))
    for token in encode("yes no maybe </thin"):
        assert allowed(matcher) is None
        assert matcher.accept(token)
    for token in encode("k>"):
        matcher.accept(token)
    assert {encode("y")[0], encode("n")[0]} == allowed(matcher)


@pytest.mark.parametrize(
    ("text", "trigger", "start"),
    [
        (b'x { "name" : "f"', b'{"name":"f"', 2),
        (b'{"name":"f"', b'{"name":"f"', 0),
        (b'{"nme":"f"', b'{"name":"f"', -1),
        (b"<tool_ call>", b"<tool_call>", 0),
        (b"", b"a", -1),
    ],
)
def test_match_backwards(text, trigger, start):
    assert match_backwards(text, len(text), trigger) == start


def test_random_walks_under_the_mask_end_in_valid_json():
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": "array", "items": {"type": "integer"}},
            "c": {"enum": ["x", 1, None]},
        },
        "required": ["a", "c"],
        "additionalProperties": False,
    }
    engine = backend()
    compiled = engine.compile(GrammarSpec(kind="json_schema", source=json.dumps(schema)))
    rng, finished = random.Random(3), 0
    for _ in range(60):
        matcher, out = engine.matcher(compiled), []
        while len(out) < 200:
            permitted = sorted(allowed(matcher))
            token = EOS if EOS in permitted else rng.choice([t for t in permitted if t != 0x20] or permitted)
            assert matcher.accept(token)
            out.append(token)
            if token == EOS:
                document = json.loads(decode(out))
                assert set(document) <= {"a", "b", "c"}
                assert document["c"] in ("x", 1, None)
                finished += 1
                break
    assert finished > 20


def test_compiled_grammars_are_cached_within_a_byte_budget(monkeypatch):
    monkeypatch.setattr("engine.grammar.llguidance_backend.CACHE_BYTES", 1_000_000)
    engine = backend()
    for index in range(50):
        engine.compile(GrammarSpec(kind="regex", source=f"a{{{index + 1}}}"))
        assert engine.cached_bytes <= 1_000_000
    first = engine.compile(GrammarSpec(kind="regex", source="z"))
    assert engine.compile(GrammarSpec(kind="regex", source="z")) is first


def test_white_space_before_a_bare_call_is_read_once():
    """The model may write any amount of it. What is wrong in it took hours to find, of the one thread
    that computes for everybody; the trigger after it is no call, and the one after white space alone is."""
    spec = GrammarSpec(kind="lark", source=r'start: "{\"name\":" /[0-9]/ "}"', triggers_at_start=('{"name":',))
    for before in (" " * 900 + "x", "]" * 400 + " " * 400 + "x", "\n ,;" * 300 + "x"):
        matcher = matcher_for(spec)
        for token in encode(before + '{"name":'):
            assert matcher.accept(token)
        assert matcher.accept(encode("a")[0]), "free text"
    matcher = matcher_for(spec)
    for token in encode("\n ,;" * 300 + '{"name":'):
        assert matcher.accept(token)
    assert not matcher.accept(encode("a")[0]), "inside the grammar"


def test_prose_rules_out_a_bare_call_however_long_ago_it_was():
    """Of the text only so much is kept; that what is kept is white space says nothing of what stood before it."""
    spec = GrammarSpec(kind="lark", source=r'start: "{\"name\":" /[0-9]/ "}"', triggers_at_start=('{"name":',))
    for gap in (1, TAIL_BYTES - 1, TAIL_BYTES, 2 * TAIL_BYTES):
        matcher = matcher_for(spec)
        for token in encode("For example:" + " " * gap + '{"name":'):
            assert matcher.accept(token)
        assert matcher.accept(encode("a")[0]), f"free text after {gap}"


def test_start_after_may_be_the_first_thing_that_is_written():
    matcher = matcher_for(GrammarSpec(kind="regex", source="[0-9]+", start_after="</think>"))
    for token in encode("</think>"):
        assert matcher.accept(token)
    assert not matcher.accept(encode("x")[0])
    assert matcher.accept(encode("7")[0])
