"""The tokenizer of the real default model: ids as transformers gives them, and no special token from user text."""

from __future__ import annotations

import unicodedata

import pytest
from tokenizers import normalizers

from engine.text.load import load_tokenizer
from tests.engine.real_model import real_model_path
from tests.engine.text.samples import CORPUS, random_texts

pytestmark = pytest.mark.real_model

GUARD = "\ue000"
REFERENCE = {
    "<|im_start|>user\nWhat is the weather in Oslo?<|im_end|>\n<|im_start|>assistant\n": (
        *(151644, 872, 198, 3838, 374, 279, 9104, 304, 57858, 30, 151645, 198, 151644, 77091, 198),
    ),
    "def add(a: int, b: int) -> int:\n    return a + b\n": (
        *(750, 912, 2877, 25, 526, 11, 293, 25, 526, 8, 1464, 526, 510, 262, 470, 264, 488, 293, 198),
    ),
    "It's 2024; we'LL see\xa0e\u0301 -> \xe9   \n\n\t\xfcber \u4e2d\u6587 \U0001f389\U0001f469\u200d\U0001f469\u200d\U0001f467": (
        *(2132, 594, 220, 17, 15, 17, 19, 26, 582, 6, 4086, 1490, 4102, 963, 1464, 3958, 33933, 197, 48985, 72858),
        *(16744, 11162, 236, 231, 145233, 378, 235, 145233, 378, 235, 145665),
    ),
    '<tool_call>\n{"name": "f", "arguments": {"x": 1.50}}\n</tool_call>': (
        *(
            151657,
            198,
            4913,
            606,
            788,
            330,
            69,
            497,
            330,
            16370,
            788,
            5212,
            87,
            788,
            220,
            16,
            13,
            20,
            15,
            11248,
            151658,
        ),
    ),
}
"""Ids from transformers 5.24 with the normaliser of the published tokenizer.json."""


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(real_model_path())


@pytest.mark.parametrize("text", REFERENCE)
def test_ids_are_those_of_transformers(tokenizer, text):
    ids = tokenizer.encode(text)
    assert tuple(ids) == REFERENCE[text]
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_text_comes_back(tokenizer):
    normal = normalizers.NFC()
    for text in [*CORPUS, *random_texts(2000)]:
        assert tokenizer.decode(tokenizer.encode(text)) == normal.normalize_str(text)


def test_every_special_spelling_in_user_text_is_ordinary(tokenizer):
    specials = set(tokenizer.special_tokens.values())
    checked = 0
    for spelling in tokenizer.special_tokens:
        for frame in ("{}", "a{}b", " {} ", "x\n{}\n"):
            guarded = "<|im_start|>user\n" + frame.format(spelling[0] + GUARD + spelling[1:]) + "<|im_end|>"
            inner = tokenizer.encode(guarded, guard=GUARD)[1:-1]
            assert specials.isdisjoint(inner)
            assert tokenizer.decode(inner) == "user\n" + frame.format(spelling)
            checked += 1
    assert checked >= 4 * 20


def test_turn_ends_and_template(tokenizer):
    assert tokenizer.eos_token == "<|im_end|>"
    assert set(tokenizer.eos_token_ids) == {151645, 151643}
    assert "tool_call" in tokenizer.chat_template
