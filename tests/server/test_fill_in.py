"""``suffix``: filling in between two texts, for models with marks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import pytest

from tests.fakes import ByteTokenizer, ScriptedEngine
from tests.server.conftest import Gateway, events

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


class Marked(ByteTokenizer):
    def __init__(self, *names: str) -> None:
        super().__init__()
        first = 256 + len(self.special_tokens)
        self.special_tokens: Mapping[str, int] = {
            **self.special_tokens,
            **{name: first + place for place, name in enumerate(names)},
        }


def engine(*names: str) -> ScriptedEngine:
    return ScriptedEngine("middle", tokenizer=Marked(*names))


async def _complete(gateway: Gateway, path: str = "/v1/completions", **body: Any) -> Any:
    return await gateway.client.post(path, content=orjson.dumps({"model": "test-model", **body}))


@pytest.mark.parametrize("marks", [QWEN, STARCODER])
async def test_completions_fill_in(make_gateway: Callable[..., Any], marks: tuple[str, ...]) -> None:
    async with make_gateway(engine(*marks)) as gateway:
        answer = (await _complete(gateway, prompt="def f(", suffix="return x")).json()
        assert answer["choices"][0]["text"] == "middle"
        begin, hole, middle = marks
        asked = gateway.engine.requests[0]
        assert asked.text == f"{begin}def f({hole}return x{middle}"
        ids = gateway.engine.tokenizer.special_tokens
        assert {ids["<|endoftext|>"], *(ids[mark] for mark in marks)} <= set(asked.sampling.stop_token_ids)
        # many prompts, ids to stop at of the client's own, and a stream
        more = {"prompt": ["a", ""], "suffix": "b", "stop_token_ids": [5], "stream": True}
        found = events((await _complete(gateway, **more)).text)
        assert found[-1] == "[DONE]"
        assert [asked.text for asked in gateway.engine.requests[1:]] == [
            f"{begin}a{hole}b{middle}",
            f"{begin}{hole}b{middle}",
        ]
        assert 5 in gateway.engine.requests[-1].sampling.stop_token_ids


@pytest.mark.parametrize("suffix", [None, ""])
async def test_without_a_suffix_a_prompt_is_raw(make_gateway: Callable[..., Any], suffix: str | None) -> None:
    async with make_gateway(engine(*QWEN)) as gateway:
        await _complete(gateway, prompt="def f(", suffix=suffix)
        assert gateway.engine.requests[0].text == "def f("
        assert not gateway.engine.requests[0].sampling.stop_token_ids


@pytest.mark.parametrize(
    ("marks", "fields", "param"),
    [
        ((), {"prompt": "a"}, "suffix"),
        (QWEN[:2], {"prompt": "a"}, "suffix"),
        (QWEN, {"prompt": [1, 2]}, "prompt"),
        (QWEN, {"prompt": ["a", [1]]}, "prompt"),
        (QWEN, {"prompt": "a", "echo": True}, "echo"),
        (QWEN, {"prompt": "a", "suffix": 5}, "suffix"),
        (QWEN, {"prompt": "a", "suffix": "x" * 9_000_000}, "suffix"),
    ],
)
async def test_what_cannot_be_filled_in_is_refused(
    make_gateway: Callable[..., Any], marks: tuple[str, ...], fields: Any, param: str
) -> None:
    async with make_gateway(engine(*marks)) as gateway:
        response = await _complete(gateway, **{"suffix": "b", **fields})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param
        assert not gateway.engine.requests


async def test_ollama_fills_in_and_says_so(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(engine(*QWEN)) as gateway:
        answer = (await _complete(gateway, "/api/generate", prompt="a", suffix="b", stream=False)).json()
        assert answer["response"] == "middle"
        assert gateway.engine.requests[0].text == "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
        shown = (await gateway.client.post("/api/show", json={"model": "test-model"})).json()
        assert "insert" in shown["capabilities"]
        assert ".Suffix" in shown["template"]  # where Continue looks
