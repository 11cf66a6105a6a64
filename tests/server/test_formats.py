"""Every tool-call and reasoning format behind the gateway: what a model says without calling arrives, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import Reply
from tests.server.conftest import events
from tests.server.test_chat import USER, WEATHER
from toolcall.reasoning import REASONING_FORMATS
from toolcall.registry import list_formats

PAIRS = [
    *((fmt.name, fmt.reasoning or "none") for fmt in list_formats()),
    *(("hermes", thought.name) for thought in REASONING_FORMATS),
]


@pytest.mark.parametrize(("tools", "reasoning"), PAIRS)
async def test_an_answer_in_words(make_gateway: Callable[..., Any], tools: str, reasoning: str) -> None:
    args = {"tool_call_parser": tools, "reasoning_parser": reasoning}
    async with make_gateway(Reply("Hello there", chunk=4), **args) as gateway:
        whole = (await gateway.chat(USER, tools=[WEATHER])).json()["choices"][0]
        streamed = events((await gateway.chat(USER, tools=[WEATHER], stream=True)).text)
    said = [chunk["choices"][0]["delta"] for chunk in streamed[:-1]]
    parts = {key: "".join(delta.get(key) or "" for delta in said) for key in ("content", "reasoning_content")}
    assert parts == {key: whole["message"].get(key) or "" for key in parts}
    assert "".join(parts.values()) == "Hello there"
    assert whole["finish_reason"] == streamed[-2]["choices"][0]["finish_reason"] == "stop"
