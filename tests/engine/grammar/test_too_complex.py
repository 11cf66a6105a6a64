"""Grammars that compile but cannot be followed: found by the check, and never a stop or a crash in the engine."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engine.grammar.factory import build_backend
from engine.grammar.interface import GrammarError
from engine.grammar.llguidance_backend import Validator
from engine.messages import GrammarSpec
from engine.text.byte_tokenizer import EOS_ID, VOCAB_SIZE, ByteTokenizer
from tests.engine.scheduler.harness import Harness, alone, prompts


def union(count: int, **branch: object) -> GrammarSpec:
    """``count`` objects; "#" in a name or value is the branch's number."""
    branches = [json.loads(json.dumps({"type": "object", **branch}).replace("#", str(i))) for i in range(count)]
    return GrammarSpec(kind="json_schema", source=json.dumps({"anyOf": branches}))


TAGGED = {"properties": {"kind": {"const": "k#"}, "v": {"type": "integer"}}, "required": ["kind", "v"]}
DISTINCT = {"properties": {"a#": {"type": "integer"}, "v": {"type": "string"}}, "required": ["a#"]}
SAME = {"properties": {"a": {"type": "integer"}, "v": {"type": "string"}}, "required": ["a"]}
OPTIONAL = {"properties": {"a": {"type": "integer"}, "v#": {"type": "string"}}}

FINE = [union(512, **TAGGED), union(512, **DISTINCT), union(256, **SAME), union(128, **OPTIONAL)]
HOPELESS = [union(1024, **OPTIONAL), union(1500, **SAME)]


@pytest.fixture(scope="module")
def backend():
    return build_backend(ByteTokenizer(), VOCAB_SIZE, [EOS_ID])


def walk(backend, spec: GrammarSpec) -> None:
    """To the end, always with the first allowed byte that is no white space."""
    matcher = backend.start(backend.compile(spec))
    mask = np.zeros(-(-VOCAB_SIZE // 32), np.int32)
    for _ in range(60):
        if matcher.terminated:
            return
        matcher.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little", count=256))
        token = next((int(byte) for byte in allowed if byte not in b" \n\t\r"), EOS_ID)
        matcher.forced_tokens()
        assert matcher.accept(token)


@pytest.mark.parametrize("spec", FINE, ids=["tagged", "distinct", "same", "optional"])
def test_wide_unions_are_followed(backend, spec):
    Validator().validate(spec)
    walk(backend, spec)


@pytest.mark.parametrize("spec", HOPELESS, ids=["optional", "same"])
def test_what_cannot_be_followed_is_found_by_the_check(backend, spec):
    with pytest.raises(GrammarError, match="too complex"):
        Validator().validate(spec)
    with pytest.raises(GrammarError, match="too complex"):
        walk(backend, spec)


def test_an_error_is_never_a_stop(backend):
    """llguidance says ``stopped`` in its error state too: every method raises instead."""
    matcher = backend.start(backend.compile(HOPELESS[0]))
    with pytest.raises(GrammarError):
        matcher.accept(ord("{"))
    mask = np.zeros(-(-VOCAB_SIZE // 32), np.int32)
    for use in (
        lambda: matcher.terminated,
        matcher.forced_tokens,
        lambda: matcher.fill_mask(mask),
        lambda: matcher.accept(ord("x")),
        lambda: matcher.accept(EOS_ID),
    ):
        with pytest.raises(GrammarError):
            use()


@pytest.mark.parametrize("spec", HOPELESS, ids=["optional", "same"])
def test_in_the_engine_it_ends_that_request_with_400(backend, spec):
    harness = Harness(grammar=backend, pages=1024)
    work = prompts(3, seed=3, high=40)
    for index, prompt in enumerate(work):
        harness.add(str(index), prompt)
    harness.add("culprit", range(20), max_tokens=100, temperature=0.0, grammar=spec)
    results = harness.run()
    finish = results["culprit"].finish
    assert (finish.type, finish.status) == ("error", 400)
    assert "too complex" in finish.message
    assert all(results[str(index)].token_ids == alone(prompt) for index, prompt in enumerate(work))


@pytest.mark.parametrize("asleep", [False, True], ids=["awake", "woken by the guess"])
def test_a_guess_that_leads_there_costs_the_guess_alone(backend, asleep):
    """In the prompt every token is followed by what begins a branch that cannot be followed; the answers go on."""
    begin, triggers = ("", ("!{",)) if asleep else ("/[a-z]+/", ())
    spec = GrammarSpec(kind="lark", source=f'start: {begin} "!" %json {HOPELESS[0].source}', triggers=triggers)
    prompt = [token for byte in range(256) for token in (byte, *b"!{")]
    answers = []
    for drafts in (0, 4):
        harness = Harness(grammar=backend, pages=1024, num_draft_tokens=drafts)
        for index in range(8):
            harness.add(str(index), [index, *prompt], max_tokens=30, temperature=0.0, grammar=spec)
        results = harness.run()
        answers.append([(results[str(index)].token_ids, results[str(index)].finish) for index in range(8)])
    assert any(finish.type != "error" for _, finish in answers[0])
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("ebnf", 'start: "a" B\nB: /b/ & /c/'),
        ("ebnf", 'start: "a" B\nB: /b+/ & ~/b*/'),
        ("ebnf", "start: start"),
        ("regex", r"[^\s\S]"),
    ],
)
def test_a_grammar_that_no_text_satisfies_says_so(kind, source):
    with pytest.raises(GrammarError, match="No text satisfies the grammar") as caught:
        Validator().validate(GrammarSpec(kind=kind, source=source))
    assert "exclude each other" in str(caught.value)
    assert "NoExtension" not in str(caught.value)


def test_a_grammar_that_is_too_complex_says_what_helps():
    with pytest.raises(GrammarError, match=r"too complex.*fewer alternatives"):
        Validator().validate(GrammarSpec(kind="ebnf", source='start: "a" x\nx: "b" x'))
