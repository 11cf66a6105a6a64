"""Grammars over tokenizers that put a space in front of texts: what a grammar forces begins where the text so far ends."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, pre_tokenizers

from engine.grammar.factory import build_backend
from engine.grammar.interface import GrammarError
from engine.messages import GrammarSpec
from engine.text.bpe_tokenizer import BPETokenizer
from engine.text.hf_tokenizer import load_hf_tokenizer
from tests.engine.text.samples import sentencepiece

CALL = 'start: "<tool_call>\\n{\\"name\\": \\"dog" /[a-z]/ "\\"}\\n</tool_call>"'
TEXT = '<tool_call>\n{"name": "dogx"}\n</tool_call>'


@pytest.fixture(params=["every", "spaceless", "first"])
def tokenizer(request, tmp_path) -> BPETokenizer:
    made = Tokenizer.from_str(sentencepiece().to_str())
    if request.param == "spaceless":
        made.normalizer = None
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    made.add_tokens([AddedToken(text, normalized=False) for text in ("<tool_call>", "</tool_call>")])
    (tmp_path / "tokenizer.json").write_text(made.to_str())
    config = {"eos_token": "</s>", **({"tokenizer_class": "LlamaTokenizer"} if request.param == "first" else {})}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return load_hf_tokenizer(tmp_path)


def allowed(matcher, tokenizer: BPETokenizer) -> list[bytes] | None:
    mask = np.zeros(-(-tokenizer.vocab_size // 32), np.int32)
    if not matcher.fill_mask(mask):
        return None
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    return [tokenizer.id_to_bytes(int(token)) for token in ids]


def test_what_is_forced_is_what_the_grammar_says(tokenizer):
    backend = build_backend(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = backend.matcher(backend.compile(GrammarSpec(kind="lark", source=CALL)))
    written, steps = "", 0
    while not matcher.terminated:
        tokens = matcher.forced_tokens() or tokenizer.encode_part(TEXT[len(written) :])[:1]
        assert all(matcher.accept(token) for token in tokens)
        written += b"".join(map(tokenizer.id_to_bytes, tokens)).decode()
        steps += 1
    assert written == TEXT
    assert steps < 8, "the model is asked for the letter, not for what is clear"


@pytest.mark.parametrize("trigger", ["<tool_call>", '{"name"'])
def test_a_trigger_wakes_the_grammar(tokenizer, trigger):
    source = CALL if trigger == "<tool_call>" else CALL.replace("<tool_call>\\n", "")
    spec = GrammarSpec(kind="lark", source=source, triggers=(trigger,))
    backend = build_backend(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    matcher = backend.matcher(backend.compile(spec))
    for token in tokenizer.encode("So: ") + tokenizer.encode_part(TEXT[: TEXT.index("dogx") + 3]):
        assert matcher.accept(token)
    assert all(len(text) == 1 and text.islower() for text in allowed(matcher, tokenizer))


def test_a_model_without_an_end_takes_no_grammar(tokenizer):
    with pytest.raises(GrammarError, match="no token that ends a text"):
        build_backend(tokenizer, tokenizer.vocab_size, ())
