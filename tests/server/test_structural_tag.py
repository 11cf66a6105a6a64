"""structural_tag: free text, and tagged JSON once a trigger was written; enforced by the real grammar backend."""

from __future__ import annotations

from typing import Any

import pytest

from engine.grammar.llguidance_backend import LLGuidanceBackend, VocabularyWrapper
from server import limits
from server.constraints import OutputShape
from server.errors import BadRequest
from server.structural_tag import parse_structural_tag
from tests.server.conftest import Gateway
from tests.server.test_chat import USER

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TAG: Any = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=weather>", "schema": CITY, "end": "</function>"},
        {"begin": "<function=count>", "schema": {"type": "integer"}, "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def accepts(shape: OutputShape, text: str) -> bool:
    assert shape.grammar is not None
    tokens = [bytes([byte]) for byte in range(256)] + [b"<eos>"]
    backend = LLGuidanceBackend(VocabularyWrapper(tokens, [256], 256, lambda text: list(text.encode())), 257, (256,))
    matcher = backend.matcher(backend.compile(shape.grammar))
    return all(matcher.accept(byte) for byte in text.encode())


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("free text, even {json} and <b>", True),
        ('<function=weather>{"city": "Paris"}</function>', True),
        ('First.<function=weather>{"city":"Paris"}</function> and <function=count>5</function> done', True),
        ("<function=count>five", False),
        ('<function=weather>{"town"', False),
        ("<function=other>", False),
        ("<function=count>5</fun>", False),
    ],
)
def test_what_it_allows(text: str, allowed: bool) -> None:
    assert accepts(parse_structural_tag(TAG, "response_format"), text) is allowed


async def test_on_chat(gateway: Gateway) -> None:
    response = await gateway.chat(USER, response_format=TAG)
    assert response.status_code == 200, response.text
    grammar = gateway.engine.requests[-1].grammar
    assert grammar is not None
    assert grammar.triggers == ("<function=",)


def change(**fields: Any) -> Any:
    return {**TAG, **fields}


@pytest.mark.parametrize(
    ("tag", "param"),
    [
        (change(triggers=[]), ".triggers"),
        (change(triggers=None), ".triggers"),
        (change(triggers=[" "]), ".triggers"),
        (change(triggers=["<function="] * (limits.MAX_TRIGGERS + 1)), ".triggers"),
        (change(triggers=["x" * (limits.MAX_TAG_CHARS + 1)]), ".triggers"),
        (change(structures=[]), ".structures"),
        (change(structures=[5]), ".structures[0]"),
        (change(structures=TAG["structures"] * (limits.MAX_STRUCTURES // 2 + 1)), ".structures"),
        (change(structures=[{"begin": "<other>", "schema": {}, "end": ""}]), ".structures[0].begin"),
        (change(structures=[{"begin": "<function=", "schema": 5, "end": ""}]), ".structures[0].schema"),
        (change(structures=[{"begin": "<function=", "schema": {"type": "nope"}, "end": ""}]), ".structures[0].schema"),
        (change(structures=[{"begin": "<function=", "schema": {}, "end": 5}]), ".structures[0].end"),
        (
            change(structures=[{"begin": "<function=" + "f" * limits.MAX_TAG_CHARS, "schema": {}, "end": ""}]),
            ".structures[0].begin",
        ),
        (
            change(structures=[{"begin": "<function=", "schema": {}, "end": "e" * (limits.MAX_TAG_CHARS + 1)}]),
            ".structures[0].end",
        ),
        ({"type": "structural_tag", "format": {}}, ".format"),
    ],
)
def test_refusals(tag: Any, param: str) -> None:
    with pytest.raises(BadRequest) as info:
        parse_structural_tag(tag, "response_format")
    assert info.value.param == "response_format" + param


def test_the_limits_themselves_are_allowed() -> None:
    structures = TAG["structures"] * (limits.MAX_STRUCTURES // 2)
    triggers = ["<function=", *[f"<t{i}" for i in range(limits.MAX_TRIGGERS - 1)]]
    assert parse_structural_tag(change(structures=structures, triggers=triggers), "x").grammar is not None
    most = "<" + "t" * (limits.MAX_TAG_CHARS - 1)
    structures = [{"begin": most, "schema": {}, "end": most}]
    assert parse_structural_tag(change(structures=structures, triggers=[most, "<"]), "x").grammar is not None
