from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.byte_tokenizer import EOS_ID, SPECIAL_TOKENS, VOCAB_SIZE, ByteTokenizer

tokenizer = ByteTokenizer()


@given(st.text())
def test_plain_text_round_trips(text):
    ids = tokenizer.encode(text)
    assert all(token < 256 for token in ids)
    assert tokenizer.decode(ids) == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_special_tokens(special):
    ids = tokenizer.encode(f"a{special}b")
    assert ids == [97, tokenizer.special_tokens[special], 98]
    assert tokenizer.decode(ids) == f"a{special}b"
    assert tokenizer.decode(ids, skip_special_tokens=True) == "ab"


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
@pytest.mark.parametrize("cut", [1, 3])
def test_a_guarded_spelling_is_ordinary_text(special, cut):
    guarded = special[:cut] + "\ue000" + special[cut:]
    ids = tokenizer.encode(f"x{guarded}y", guard="\ue000")
    assert ids == list(f"x{special}y".encode())


def test_ids_it_does_not_know():
    assert tokenizer.id_to_bytes(VOCAB_SIZE) == b""
    assert tokenizer.id_to_bytes(-1) == b""
    assert tokenizer.eos_token_ids == (EOS_ID,)
