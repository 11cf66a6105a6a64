"""Every special token of a vocabulary, written by a client in any place, becomes ordinary tokens."""

from __future__ import annotations

from collections import Counter

import pytest

from chat_templates import choose_template, render
from engine.text.load import load_tokenizer
from engine.text.tokenizer import TextTokenizer
from tests.engine.real_model import real_model_path

PLACES = ("user", "system", "assistant", "tool", "name", "description", "argument", "key")


def check_every_special_token(tokenizer: TextTokenizer) -> int:
    """Counts what was checked; fails where a client's text adds a special id, or loses a character."""
    template = choose_template(tokenizer.chat_template, tokenizer.special_tokens).source
    special_ids = set(tokenizer.special_tokens.values())
    checked = 0
    for token in tokenizer.special_tokens:
        for place in PLACES:
            ids = _encode(tokenizer, template, {place: f"a{token}b"})
            clean = _encode(tokenizer, template, {place: "ab"})
            assert _specials(ids, special_ids) == _specials(clean, special_ids), (token, place)
            assert f"a{token}b" in tokenizer.decode(ids), (token, place)
            checked += 1
    return checked


def _specials(ids: list[int], special: set[int]) -> Counter[int]:
    return Counter(i for i in ids if i in special)


def _encode(tokenizer: TextTokenizer, template: str, text: dict[str, str]) -> list[int]:
    slot = dict.fromkeys(PLACES, "x") | text
    function = {"name": slot["name"], "arguments": {slot["key"]: slot["argument"]}}
    messages = [
        {"role": "system", "content": slot["system"]},
        {"role": "user", "content": slot["user"]},
        {"role": "assistant", "content": slot["assistant"], "tool_calls": [{"id": "c", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": slot["tool"]},
    ]
    tools = [{"type": "function", "function": {"name": slot["name"], "description": slot["description"]}}]
    prompt = render(template, messages, tools, special_tokens=tokenizer.special_tokens)
    return tokenizer.encode(prompt.text, guard=prompt.guard)


def test_byte_tokenizer() -> None:
    assert check_every_special_token(load_tokenizer("hash-lm")) >= 2 * len(PLACES)


@pytest.mark.real_model
def test_real_vocabulary() -> None:
    assert check_every_special_token(load_tokenizer(real_model_path())) >= 20 * len(PLACES)
