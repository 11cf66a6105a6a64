from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.vocabulary import Vocabulary, byte_alphabet


def test_the_alphabet_spells_every_byte():
    alphabet = byte_alphabet()
    vocabulary = Vocabulary([alphabet, *alphabet], "byte_level")
    assert vocabulary.id_to_bytes(0) == bytes(range(256))
    assert [vocabulary.id_to_bytes(token) for token in range(1, 257)] == [bytes([byte]) for byte in range(256)]


@given(st.text(st.one_of(st.sampled_from(byte_alphabet()), st.characters(max_codepoint=0x2FF), st.characters())))
def test_a_token_is_its_bytes_or_where_it_is_not_spelt_in_the_alphabet_its_text(token):
    alphabet = byte_alphabet()
    spelt = all(char in alphabet for char in token)
    expected = bytes(map(alphabet.index, token)) if spelt else token.encode("utf-8", "surrogatepass")
    assert Vocabulary([token], "byte_level").id_to_bytes(0) == expected


@pytest.mark.parametrize("char", [" ", "\n", "\x7f", "\xa0", "\xad", "\uffff"])
def test_characters_outside_the_alphabet_are_text(char):
    assert Vocabulary([f"a{char}"], "byte_level").id_to_bytes(0) == f"a{char}".encode()
