"""Texts and patterns in Lark's spelling: the grammar allows exactly what was meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.grammar.source import lark_regex, lark_string
from engine.messages import GrammarSpec
from tests.engine.grammar.test_matchers import matcher_for
from tests.engine.grammar.vocabulary import encode
from toolcall import lark

ODD = ["é", "日本", "😀", 'a"b', "a\\b", "a/b", "a\nb", "\x7f", "\u2028", "x" * 300]


def allows(spec: GrammarSpec, text: str) -> bool:
    """Whether the text is a whole answer under the grammar."""
    matcher = matcher_for(spec)
    return all(matcher.accept(token) for token in encode(text)) and matcher.terminated


@pytest.mark.parametrize("text", ODD)
def test_a_choice_is_written_to_the_letter(text: str) -> None:
    spec = GrammarSpec(kind="choice", source=json.dumps([text, "other"]))
    assert allows(spec, text)
    assert not allows(spec, json.dumps(text))
    assert not allows(spec, text + text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("a/b", "a/b"), (r"a\/b", "a/b"), (r"a\\/b", "a\\/b"), ("[/]b", "/b"), ("a\nb", "a\nb"), ("a\\\nb", "a\nb"), ("é😀", "é😀")],
)  # fmt: skip
def test_a_regex_means_what_it_meant(pattern: str, text: str) -> None:
    spec = GrammarSpec(kind="regex", source=pattern)
    assert allows(spec, text)
    assert not allows(spec, text[:-1] + "~")


@settings(max_examples=300)
@given(st.text(alphabet='a/\\\n"[é'))
def test_toolcall_spells_them_alike(text: str) -> None:
    """toolcall stands alone and may not import the engine's grammar, so both have these two functions."""
    assert lark.lark_regex(text) == lark_regex(text)
    assert lark.lark_literal(text) == lark_string(text)
