"""A tokenizer from a model directory: tokenizer.json with the small JSON files beside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.text.bpe_tokenizer import BPETokenizer, SpaceBefore, TextFacts
from engine.text.vocabulary import SPM_SPACE, SpecialToken, Vocabulary, turn_end_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MAX_TOKENS = 4_000_000


class TokenizerError(ValueError):
    """The directory's tokenizer cannot be used; the message fits on one line."""


def load_hf_tokenizer(directory: str | Path) -> BPETokenizer:
    """Read ``directory``. Raises TokenizerError where tokenizer.json is missing, damaged or of an unknown kind."""
    directory = Path(directory)
    if not (directory / "tokenizer.json").is_file():
        raise TokenizerError(f"{directory} has no tokenizer.json.")
    spec = _read_json(directory / "tokenizer.json")
    config = _read_json(directory / "tokenizer_config.json")
    try:
        vocabulary = _vocabulary(spec)
        space_before = _named_space(config, _take_space_before(spec))
        plain = _without_added_tokens(spec)
        prefix, suffix = _around(spec, vocabulary)
    except (KeyError, TypeError, AttributeError, IndexError):
        raise TokenizerError(f"{directory / 'tokenizer.json'} is damaged or of an unknown kind.") from None
    bos, eos = (_named_id(config, name, vocabulary) for name in ("bos_token", "eos_token"))
    declared = [*([eos] if eos is not None else []), *_declared_eos(directory)]
    facts = TextFacts(
        chat_template=_chat_template(directory, config),
        bos_id=bos,
        eos_id=eos,
        eos_token_ids=turn_end_ids(vocabulary.special_ids, declared),
        prefix_ids=prefix,
        suffix_ids=suffix,
        space_before=space_before,
    )
    return BPETokenizer(vocabulary, facts, partial(_build, msgspec.json.encode(plain)))


def _read_json(path: Path) -> dict[str, Any]:
    """The file's object, {} where there is no such file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except FileNotFoundError:
        return {}
    except (msgspec.DecodeError, RecursionError):
        raise TokenizerError(f"{path} is not valid JSON.") from None


def _build(spec: bytes) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_buffer(spec)


def _vocabulary(spec: dict[str, Any]) -> Vocabulary:
    model = spec["model"]
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):  # id_to_bytes knows neither; with the first the library may even end the process
            raise TokenizerError(f"tokenizer.json has a {name}, which is not supported.")
    entries = model["vocab"]
    if isinstance(entries, dict):
        ids: dict[str, int] = dict(entries)
    else:
        ids = {token: index for index, (token, _score) in enumerate(entries)}
    added = spec.get("added_tokens") or []
    ids.update({token["content"]: token["id"] for token in added})
    if not ids or max(ids.values()) >= _MAX_TOKENS or min(ids.values()) < 0:
        raise TokenizerError("tokenizer.json holds no vocabulary or impossible ids.")
    if not all(isinstance(token, str) for token in ids):
        raise TypeError("a token is no text")
    tokens = [""] * (max(ids.values()) + 1)
    for token, index in ids.items():
        tokens[index] = token
    tokens_added = [
        SpecialToken(
            token["content"],
            token["id"],
            control=bool(token.get("special")),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
        )
        for token in added
        if token["content"]
    ]
    specials = tuple(token for token in tokens_added if not token.is_spaces)
    literals = tuple(token for token in tokens_added if token.is_spaces)
    return Vocabulary(tokens, "byte_level" if _is_byte_level(spec) else "spm", specials, literals)


def _is_byte_level(spec: dict[str, Any]) -> bool:
    kinds = {step.get("type") for step in _steps(spec.get("decoder"), "decoders")}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace", "Replace"}:
        return False
    raise TokenizerError("tokenizer.json has a decoder that is not supported (ByteLevel and SentencePiece are).")


def _steps(part: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """A pipeline part as its list of steps."""
    if not part:
        return []
    return list(part[key]) if part.get("type") == "Sequence" else [part]


def _take_space_before(spec: dict[str, Any]) -> SpaceBefore:
    """Which pieces get a space in front. Takes that step out of ``spec``: text that is split further would get one
    again."""
    found: SpaceBefore = "none"
    normalizer = spec.get("normalizer")
    prepends = [step for step in _steps(normalizer, "normalizers") if step.get("type") == "Prepend"]
    if any(step["prepend"] == SPM_SPACE for step in prepends):
        kept = [step for step in _steps(normalizer, "normalizers") if step not in prepends]
        spec["normalizer"] = {"type": "Sequence", "normalizers": kept}
        found = "every"
    for step in _steps(spec.get("pre_tokenizer"), "pretokenizers"):
        scheme = step.get("prepend_scheme", "never" if step.get("add_prefix_space") is False else "always")
        if step.get("type") == "Metaspace" and scheme in ("first", "always"):
            found = "first" if scheme == "first" else "spaceless"
            step["prepend_scheme"] = "never"
    return found


def _named_space(config: dict[str, Any], found: SpaceBefore) -> SpaceBefore:
    """Llama's class says what is done, whatever the file says (transformers 5)."""
    if found == "none" or config.get("tokenizer_class") not in ("LlamaTokenizer", "LlamaTokenizerFast"):
        return found
    if config.get("add_prefix_space") is False:
        return "none"
    return "spaceless" if config.get("legacy") else "first"


def _without_added_tokens(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec, "added_tokens": [], "post_processor": None, "truncation": None, "padding": None}


def _around(spec: dict[str, Any], vocabulary: Vocabulary) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids that the post-processor puts before and after a text."""
    before: list[int] = []
    after: list[int] = []
    for step in _steps(spec.get("post_processor"), "processors"):
        if step.get("type") != "TemplateProcessing":
            continue
        side = before
        for item in step["single"]:
            if "Sequence" in item:
                side = after
            else:
                side.extend(step["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return tuple(before), tuple(after)


def _named_id(config: dict[str, Any], name: str, vocabulary: Vocabulary) -> int | None:
    value = config.get(name)
    text = value.get("content") if isinstance(value, dict) else value
    return vocabulary.special_ids.get(text) if isinstance(text, str) else None


def _declared_eos(directory: Path) -> list[int]:
    """eos ids of generation_config.json and config.json, a number or a list in either."""
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory / name).get("eos_token_id")
        named = value if isinstance(value, list) else [value]
        ids.extend(item for item in named if type(item) is int and item >= 0)  # -1: some configs' word for none
    return ids


def _chat_template(directory: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja, else tokenizer_config's: one text, or a list of which ``tool_use`` is best here."""
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    value = config.get("chat_template")
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return None
    named = {item.get("name"): item.get("template") for item in value if isinstance(item, dict)}
    chosen = named.get("tool_use") or named.get("default")
    return chosen if isinstance(chosen, str) else None
