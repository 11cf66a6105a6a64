"""Our split-then-encode against the `tokenizers` library doing all of it, and special tokens in user text."""

from __future__ import annotations

import json
import random
from functools import partial

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine.text import bpe_tokenizer
from engine.text.bpe_tokenizer import BPETokenizer
from engine.text.gguf_tokenizer import TokenType, tokenizer_from_metadata
from engine.text.hf_tokenizer import TokenizerError, load_hf_tokenizer
from engine.text.load import load_tokenizer
from engine.text.pre_tokenizers import PRE_TOKENIZERS, apply
from engine.weights.gguf_header import GGUFError
from tests.engine.text.samples import (
    CORPUS,
    MARKERS,
    SPECIALS,
    byte_level,
    gguf_bytes,
    gguf_values,
    random_texts,
    sentencepiece,
)

GUARD = "\ue000"


def saved(tmp_path, tokenizer: Tokenizer, **files) -> BPETokenizer:
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    for name, value in files.items():
        (tmp_path / name.replace("__", ".")).write_text(value if isinstance(value, str) else json.dumps(value))
    return load_hf_tokenizer(tmp_path)


def spm_values(tokenizer: Tokenizer) -> dict:
    """A converter writes SentencePiece's scores, minus the rank of the merge, and no merges."""
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    rank = {"".join(pair): index for index, pair in reversed(list(enumerate(merges)))}
    types = [2 if t == "<unk>" else 3 if t in ("<s>", "</s>") else 6 if t.startswith("<0x") else 1 for t in tokens]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [-float(rank.get(token, 10_000 + i)) for i, token in enumerate(tokens)],
        "tokenizer.ggml.bos_token_id": tokens.index("<s>"),
        "tokenizer.ggml.eos_token_id": tokens.index("</s>"),
    }


@pytest.fixture(scope="module")
def texts():
    rng = random.Random(9)
    plain = [*CORPUS, *random_texts(1500)]
    mixed = [
        "".join(rng.choice([rng.choice([*SPECIALS, *MARKERS]), rng.choice(plain)]) for _ in range(5))
        for _ in range(300)
    ]
    return [*plain, *mixed]


def assert_equal(ours: BPETokenizer, reference: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        ids = reference.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids, repr(text)
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=False)
        assert ours.decode(ids, skip_special_tokens=True) == reference.decode(ids, skip_special_tokens=True)


def test_tokenizer_json_byte_level(tmp_path, texts):
    assert_equal(saved(tmp_path, byte_level()), byte_level(), texts)


def test_gguf_byte_level(texts):
    assert_equal(tokenizer_from_metadata(gguf_values(byte_level())), byte_level(), texts)


def test_gguf_pre_tokenizers_differ_where_their_rules_do():
    def pieces(pre: str, text: str) -> list[str]:
        ours = tokenizer_from_metadata(gguf_values(byte_level(), pre=pre))
        return [ours.id_to_bytes(token).decode("utf-8", "replace") for token in ours.encode(text)]

    assert "".join(pieces("llama-bpe", "1234")) == "1234"
    assert pieces("smollm", "2024") == ["2", "0", "2", "4"]
    assert pieces("qwen2", "2024") == ["2", "0", "2", "4"]
    with pytest.raises(GGUFError, match="'nobody-knows' is not known"):
        pieces("nobody-knows", "x")


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("seed-coder", "a!\n\nb 12", ["a", "!", "\n\n", "b", " ", "1", "2"]),
        ("qwen2", "a!\n\nb 12", ["a", "!\n\n", "b", " ", "1", "2"]),
        ("falcon3", "a!\n\nb 1234", ["a", "!\n\n", "b", " ", "123", "4"]),
        ("deepseek-coder", "ab, 12\n中b", ["ab", ",", " ", "1", "2", "\n", "中", "b"]),
        ("deepseek-v3", "1234 ภาษา ไทย あ中ア", ["123", "4", " ภาษา", " ไทย", " ", "あ中ア"]),
    ],
)
def test_where_pre_tokenizers_split(pre, text, pieces):
    """As in the tokenizer.json of the family. No merge goes across a piece."""
    tokenizer = Tokenizer(models.BPE())
    apply(PRE_TOKENIZERS[pre], tokenizer)
    split = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in split] == pieces


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer_keeps_every_byte(pre):
    values = gguf_values(byte_level(nfc=False), pre=pre)
    ours = tokenizer_from_metadata(values)
    for text in [*CORPUS, *random_texts(200)]:
        joined = b"".join(ours.id_to_bytes(token) for token in ours.encode(text))
        assert joined.decode() == (normalizers.NFC().normalize_str(text) if PRE_TOKENIZERS[pre].nfc else text)


def metaspace(scheme: str) -> Tokenizer:
    """The same vocabulary with the newer way to write the dummy prefix."""
    tokenizer = Tokenizer.from_str(sentencepiece().to_str())
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    return tokenizer


DUMMY_PREFIXES = {
    "prepend": sentencepiece,
    **{scheme: partial(metaspace, scheme) for scheme in ("always", "first", "never")},
}


def turns(texts: list[str]) -> list[str]:
    """Texts between SentencePiece's control tokens, as templates write them: with and without a space beside them."""
    rng = random.Random(4)
    parts = ("<s>", "</s>", " ", "", "\n", "[INST] ", " [/INST]", "\u2581")
    return ["".join(rng.choice(parts) + rng.choice(texts) for _ in range(4)) for _ in range(300)]


@pytest.mark.parametrize("part", [1, 2, 3, 7, 50])
def test_added_tokens_are_found_across_the_parts_of_a_search(tmp_path, monkeypatch, texts, part):
    """Also where one token begins like another, and where the shorter one is all that a part holds."""
    monkeypatch.setattr(bpe_tokenizer, "SEARCHED_AT_ONCE", part)
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("<|", "<|im", "<|im_start|>user", "d|>")])
    ours = saved(tmp_path, tokenizer)
    for text in [*texts[-150:], "<|im_start|>user", "<|im_start|>use", "x<|im_end|><|im", "<|" * 9]:
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids, repr(text)


@pytest.mark.parametrize("scheme", DUMMY_PREFIXES)
def test_tokenizer_json_sentencepiece(tmp_path, texts, scheme):
    """Every piece between special tokens gets the dummy prefix, or only the text's beginning, as the file says."""
    reference = DUMMY_PREFIXES[scheme]()
    ours = saved(tmp_path, reference)
    for text in [*texts, *turns(texts), "<s>dog", "<s> dog", "dog<s>dog</s>\ndog", " dog", "\u2581dog", "<s>", ""]:
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids, repr(text)
    assert ours.decode(ours.encode("the dog")) == "the dog"


@pytest.mark.parametrize("scheme", DUMMY_PREFIXES)
def test_a_part_of_a_text_has_the_text_s_bytes(tmp_path, scheme):
    ours = saved(tmp_path, DUMMY_PREFIXES[scheme]())
    for text in ["dog", " dog", "<s>dog</s>\n dog", "", *CORPUS, *random_texts(200)]:
        joined = b"".join(map(ours.id_to_bytes, ours.encode_part(text)))
        assert joined.decode() == text.replace("\u2581", " ")


@pytest.mark.parametrize("scheme", ["prepend", "always", "first"])
@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"tokenizer_class": "LlamaTokenizer"}, "first"),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": False}, "first"),
        ({"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, "always"),
        ({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "never"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "legacy": False}, None),
        ({"legacy": False}, None),
    ],
)
def test_llama_s_class_says_where_the_dummy_prefix_comes(tmp_path, scheme, config, wanted):
    """As transformers 5 reads it; any other class does what the file says."""
    ours = saved(tmp_path, DUMMY_PREFIXES[scheme](), tokenizer_config__json=config)
    reference = DUMMY_PREFIXES[wanted or scheme]()
    for text in ("dog", "<s>dog", "dog<s>dog", " dog", "<s> dog</s>\ndog", "\u2581dog"):
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids, text


def test_text_that_looks_special_gets_one_dummy_prefix(tmp_path):
    ours = saved(tmp_path, sentencepiece())
    assert ours.decode(ours.encode(f"<{GUARD}s>dog", guard=GUARD)) == "<s>dog"


def test_gguf_sentencepiece_rebuilds_the_merges(texts):
    """llama.cpp puts the dummy prefix before every piece, as the older tokenizer.json does."""
    ours, reference = tokenizer_from_metadata(spm_values(sentencepiece())), sentencepiece()
    spaced = [" ".join(text.split()) for text in [*CORPUS, *random_texts(300)]]
    for text in [*spaced, *turns(spaced), " dog", "<s> dog"]:
        assert ours.encode(text) == reference.encode(text, add_special_tokens=False).ids, repr(text)
    bare = tokenizer_from_metadata({**spm_values(sentencepiece()), "tokenizer.ggml.add_space_prefix": False})
    for text in ("dog", "<s>dog", " dog</s> dog"):
        assert bare.encode(text) == metaspace("never").encode(text, add_special_tokens=False).ids
    assert ours.encode("dog", add_special_tokens=True)[0] == ours.special_tokens["<s>"]


def test_metaspace_prepends_to_the_first_piece_only(tmp_path):
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=200, show_progress=False))
    tokenizer.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    ours = saved(tmp_path, tokenizer)
    for text in ("dog", "<s>dog", "the<s>dog", " dog", "lazy dog<s> fox"):
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids, text


def test_bos_and_eos_of_the_post_processor(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    bos, eos = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", bos), ("<|im_end|>", eos)]
    )
    ours = saved(tmp_path, tokenizer)
    assert ours.encode("dog", add_special_tokens=True) == tokenizer.encode("dog").ids
    assert ours.encode("", add_special_tokens=True) == [bos, eos]


def test_facts_from_the_files_beside_it(tmp_path):
    ours = saved(
        tmp_path,
        byte_level(),
        tokenizer_config__json={"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "chat_template": "inside"},
        generation_config__json={"eos_token_id": [5, 6]},
        config__json={"eos_token_id": [-1, 7, True, "8"]},
    )
    end, text = byte_level().token_to_id("<|im_end|>"), byte_level().token_to_id("<|endoftext|>")
    assert (ours.bos_token, ours.eos_token, ours.chat_template) == (None, "<|im_end|>", "inside")
    assert ours.eos_token_ids == (end, 5, 6, 7, text)
    (tmp_path / "chat_template.jinja").write_text("beside")
    assert load_hf_tokenizer(tmp_path).chat_template == "beside"


def test_a_list_of_chat_templates_prefers_tool_use(tmp_path):
    config = {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}
    assert saved(tmp_path, byte_level(), tokenizer_config__json=config).chat_template == "t"


def test_facts_from_gguf():
    ours = tokenizer_from_metadata(gguf_values(byte_level()))
    assert (ours.bos_token, ours.eos_token, ours.chat_template) == ("<|endoftext|>", "<|im_end|>", "{{ messages }}")
    assert ours.eos_token_ids == (ours.special_tokens["<|im_end|>"], ours.special_tokens["<|endoftext|>"])
    assert ours.encode("a", add_special_tokens=True) == ours.encode("a")
    with_bos = tokenizer_from_metadata(gguf_values(byte_level(), **{"tokenizer.ggml.add_bos_token": True}))
    assert with_bos.encode("a", add_special_tokens=True) == [
        with_bos.special_tokens["<|endoftext|>"],
        *ours.encode("a"),
    ]


def test_harmony_messages_end_but_turns_do_not():
    values = gguf_values(byte_level())
    values["tokenizer.ggml.tokens"] += ["<|end|>", "<|return|>", "<|call|>"]
    values["tokenizer.ggml.token_type"] += [3, 3, 3]
    ours = tokenizer_from_metadata(values)
    assert ours.special_tokens["<|end|>"] not in ours.eos_token_ids
    assert ours.special_tokens["<|call|>"] in ours.eos_token_ids


@pytest.mark.parametrize("make", ["json", "gguf", "spm"])
def test_every_special_spelling_in_guarded_text_is_ordinary(tmp_path, make):
    if make == "gguf":
        ours = tokenizer_from_metadata(gguf_values(byte_level()))
    else:
        ours = saved(tmp_path, byte_level() if make == "json" else sentencepiece())
    specials = set(ours.special_tokens.values())
    assert len(specials) == (3 if make == "spm" else 5)
    for spelling in ours.special_tokens:
        for cut in range(1, len(spelling)):
            for frame in ("{}", "a{}b", "x\n{}\n", "{0}{0}"):
                guarded = frame.format(spelling[:cut] + GUARD + spelling[cut:])
                ids = ours.encode(guarded, guard=GUARD)
                assert specials.isdisjoint(ids)
                assert ours.decode(ids) == frame.format(spelling)
        assert ours.encode(spelling) == [ours.special_tokens[spelling]]


def test_a_model_that_merges_text_into_a_special_token_is_split(tmp_path):
    """A vocabulary with the special token inside, taken whole by ignore_merges."""
    spec = json.loads(byte_level().to_str())
    spec["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec["model"]["ignore_merges"] = True
    spec["model"]["vocab"].update({token["content"]: token["id"] for token in spec["added_tokens"]})
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    ours = load_hf_tokenizer(tmp_path)
    ids = ours.encode(f"<|{GUARD}im_start|>", guard=GUARD)
    assert ours.special_tokens["<|im_start|>"] not in ids
    assert ours.decode(ids) == "<|im_start|>"


def test_tokens_that_swallow_spaces(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, rstrip=True, normalized=False, special=True)])
    ours = saved(tmp_path, tokenizer)
    for text in ("a  <mask>  b", "<mask>", " <mask> <mask> "):
        assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_whitespace_tokens_stay_text(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False)])
    ours = saved(tmp_path, tokenizer)
    assert "\n\n" not in ours.special_tokens
    assert ours.encode("a\n\nb") == tokenizer.encode("a\n\nb").ids


def test_lone_surrogates_become_replacement_characters():
    ours = tokenizer_from_metadata(gguf_values(byte_level()))
    assert ours.decode(ours.encode("a\ud800b")) == "a\ufffd\ufffd\ufffdb"


def test_ids_outside_the_vocabulary_are_no_bytes():
    ours = tokenizer_from_metadata(gguf_values(byte_level()))
    assert ours.id_to_bytes(-1) == ours.id_to_bytes(ours.vocab_size) == b""
    assert ours.decode([10**9, -5]) == ""


def test_load_tokenizer_tells_files_apart(tmp_path):
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(gguf_bytes(gguf_values(byte_level())))
    directory = tmp_path / "d"
    directory.mkdir()
    (directory / "tokenizer.json").write_text(byte_level().to_str())
    text = "<|im_start|>the quick brown fox"
    assert load_tokenizer(gguf).encode(text) == load_tokenizer(directory).encode(text)
    assert load_tokenizer("hash-lm").encode("ab") == [97, 98]
    for bad in (tmp_path / "missing", tmp_path):
        with pytest.raises(TokenizerError):
            load_tokenizer(bad)


def test_a_merge_may_name_a_token_that_is_no_ordinary_text():
    values = gguf_values(byte_level())
    expected = byte_level().encode("return", add_special_tokens=False).ids
    part = next(line.replace(" ", "") for line in values["tokenizer.ggml.merges"] if len(line) == 3)
    types = list(values["tokenizer.ggml.token_type"])
    types[values["tokenizer.ggml.tokens"].index(part)] = TokenType.UNUSED
    ours = tokenizer_from_metadata({**values, "tokenizer.ggml.token_type": types})
    assert ours.encode("return") == expected


def test_merges_are_read_when_a_text_is_encoded(tmp_path):
    """A process that only decodes never reads them, so a file without them is refused by the first text."""
    path = tmp_path / "model.gguf"
    path.write_bytes(
        gguf_bytes({key: value for key, value in gguf_values(byte_level()).items() if "merges" not in key})
    )
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode([300]) == byte_level().decode([300])
    with pytest.raises(GGUFError, match="no merges"):
        tokenizer.encode("a")


@pytest.mark.parametrize(
    "change",
    [
        {"tokenizer.ggml.model": "bert"},
        {"tokenizer.ggml.tokens": None},
        {"tokenizer.ggml.merges": None},
        {"tokenizer.ggml.token_type": [1]},
        {"tokenizer.ggml.model": "llama"},
    ],
)
def test_incomplete_metadata_is_refused(change):
    with pytest.raises(GGUFError):
        tokenizer_from_metadata({**gguf_values(byte_level()), **change})


@pytest.mark.parametrize("key", ["tokens", "token_type", "scores", "merges", "model"])
@pytest.mark.parametrize("wrong", [[1] * 650, ["a"] * 650, [0.5] * 650, [[1]], "x", 7, True])
def test_metadata_of_another_kind_is_refused_in_one_line(key, wrong):
    """Each array of a GGUF file may come as any other kind; what is found only by the first text is told as well."""
    for base in (gguf_values(byte_level()), spm_values(sentencepiece())):
        if f"tokenizer.ggml.{key}" not in base:
            continue
        with pytest.raises(GGUFError) as caught:
            tokenizer_from_metadata({**base, f"tokenizer.ggml.{key}": wrong}).encode("the <s> quick")
        assert "\n" not in str(caught.value)


def test_merges_of_tokens_that_do_not_exist_are_refused():
    values = gguf_values(byte_level())
    ours = tokenizer_from_metadata({**values, "tokenizer.ggml.merges": ["no such"]})
    with pytest.raises(GGUFError, match="make no tokenizer"):
        ours.encode("a")


def test_a_token_that_is_no_utf8_keeps_its_bytes():
    values = spm_values(sentencepiece())
    values["tokenizer.ggml.tokens"][-1] = b"a\x80\xff".decode("utf-8", "surrogateescape")
    ours = tokenizer_from_metadata(values)
    assert ours.id_to_bytes(ours.vocab_size - 1) == b"a\x80\xff"


@pytest.mark.parametrize("key", ["continuing_subword_prefix", "end_of_word_suffix"])
def test_word_marks_are_refused(tmp_path, key):
    """With a prefix that cuts a character, the library ends the process."""
    spec = json.loads(sentencepiece().to_str())
    spec["model"][key] = "x"
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(TokenizerError, match=key):
        load_hf_tokenizer(tmp_path).encode("a")


def test_damaged_tokenizer_files_are_refused_or_read_but_never_crash(tmp_path):
    rng = random.Random(2)
    data = byte_level().to_str().encode()
    messages = []
    for index in range(150):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(32, 127)
        (tmp_path / "tokenizer.json").write_bytes(damaged if index % 3 else damaged[: rng.randrange(len(damaged))])
        try:
            ours = load_hf_tokenizer(tmp_path)
            ours.encode("the quick brown fox <|im_end|>")
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 20
    assert not [message for message in messages if "\n" in message]


def test_normalizers_apply_inside_a_piece_only(tmp_path):
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    ours = saved(tmp_path, tokenizer)
    text = "ABC<|im_start|>DEF e\u0301"
    assert ours.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids
