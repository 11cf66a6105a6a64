from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.byte_tokenizer import ByteTokenizer
from engine.text.detokenize import IncrementalDetokenizer, TokenBytes
from engine.text.gguf_tokenizer import tokenizer_from_metadata
from tests.engine.text.samples import CORPUS, byte_level, gguf_values, random_texts

TABLE = TokenBytes(ByteTokenizer())


def pushed(data: bytes, cuts: tuple[int, ...] = ()) -> list[str]:
    """One id per byte, so that every character is split everywhere."""
    detokenizer = IncrementalDetokenizer(TABLE)
    return [*[detokenizer.push(byte) for byte in data], detokenizer.flush()]


@pytest.mark.parametrize("text", [*CORPUS, "é", "中", "🎉", "👩‍👩‍👧", "a🎉", "\U0010ffff", "\x00"])
def test_a_character_comes_whole_and_as_soon_as_it_is_complete(text):
    data = text.encode()
    deltas = pushed(data)
    assert "".join(deltas) == text
    assert "\ufffd" not in "".join(deltas)
    for length in range(len(data) + 1):
        complete = data[:length].decode("utf-8", errors="ignore")
        assert "".join(deltas[:length]) == complete


@given(st.binary(max_size=60))
def test_any_bytes_give_what_decoding_them_at_once_gives(data):
    assert "".join(pushed(data)) == data.decode("utf-8", errors="replace")


def test_an_unfinished_character_becomes_one_replacement_at_the_end():
    deltas = pushed("🎉".encode()[:3])
    assert deltas == ["", "", "", "\ufffd"]


def test_real_tokens_give_the_text_back():
    tokenizer = tokenizer_from_metadata(gguf_values(byte_level()))
    table = TokenBytes(tokenizer)
    for text in [*CORPUS, *random_texts(300)]:
        ids = tokenizer.encode(text)
        detokenizer = IncrementalDetokenizer(table)
        deltas = [*map(detokenizer.push, ids), detokenizer.flush()]
        assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("skip", "keep", "expected"),
    [
        (True, (), "a<tool_call>b"),
        (False, (), "a<|im_end|><tool_call>b"),
        (True, ("<|im_end|>", "<unknown>"), "a<|im_end|><tool_call>b"),
    ],
)
def test_control_tokens_are_skipped_unless_kept(skip, keep, expected):
    tokenizer = tokenizer_from_metadata(gguf_values(byte_level()))
    detokenizer = IncrementalDetokenizer(TokenBytes(tokenizer), skip_special_tokens=skip, keep_special=keep)
    ids = tokenizer.encode("a<|im_end|><tool_call>b")
    assert "".join(map(detokenizer.push, ids)) + detokenizer.flush() == expected


def test_a_skipped_token_inside_a_character_does_not_break_it():
    special = ByteTokenizer().special_tokens["<|im_end|>"]
    first, *rest = "é".encode()
    detokenizer = IncrementalDetokenizer(TABLE)
    assert detokenizer.push(first) + detokenizer.push(special) + "".join(map(detokenizer.push, rest)) == "é"
