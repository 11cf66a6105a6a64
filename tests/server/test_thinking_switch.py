"""Whether the model is to think: every dialect's words for it, and both names that templates give the switch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import ScriptedEngine

TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "[{{ enable_thinking if enable_thinking is defined else 'unset' }} {{ thinking if thinking is defined else 'unset' }}]"
)
ON, OFF, UNSET = "[True True]", "[False False]", "[unset unset]"
CHAT = [
    ({}, UNSET),
    ({"enable_thinking": True}, ON), ({"enable_thinking": False}, OFF), ({"enable_thinking": None}, UNSET),
    ({"thinking": {"type": "enabled", "budget_tokens": 9}}, ON), ({"thinking": {"type": "disabled"}}, OFF),
    ({"thinking": {"type": "adaptive"}}, UNSET), ({"thinking": {"type": "auto"}}, UNSET), ({"thinking": None}, UNSET),
    ({"thinking": True}, ON), ({"thinking": False}, OFF), ({"thinking": True, "enable_thinking": False}, OFF),
    ({"reasoning_effort": "none"}, OFF), ({"reasoning_effort": "low"}, UNSET),
    ({"reasoning_effort": "none", "enable_thinking": True}, ON),
    ({"enable_thinking": True, "chat_template_kwargs": {"thinking": False}}, "[unset False]"),
    ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "[True unset]"),
]  # fmt: skip
RESPONSES = [({}, UNSET), ({"reasoning": {"effort": "none"}}, OFF), ({"reasoning": {"effort": "high"}}, UNSET)]
MESSAGES = [
    ({}, OFF), ({"thinking": {"type": "disabled"}}, OFF), ({"thinking": {"type": "adaptive"}}, ON),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, ON),
    ({"chat_template_kwargs": {"thinking": True}}, "[unset True]"),
]  # fmt: skip
CASES = [
    *(("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **f}, want) for f, want in CHAT),
    *(("/v1/responses", {"input": "hi", **f}, want) for f, want in RESPONSES),
    *(
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, **f}, want)
        for f, want in MESSAGES
    ),
]


@pytest.mark.parametrize(("path", "body", "expected"), CASES)
async def test_the_template_hears_of_it(make_gateway: Callable[..., Any], path: str, body: Any, expected: str) -> None:
    engine = ScriptedEngine("Sunny.")
    engine.tokenizer.chat_template = TEMPLATE
    async with make_gateway(engine) as gateway:
        answer = await gateway.client.post(path, json={"model": "test-model", **body})
    assert answer.status_code == 200, answer.text
    assert (engine.requests[0].text or "").endswith(expected)


@pytest.mark.parametrize("field", [{"thinking": {}}, {"thinking": {"type": "on"}}, {"thinking": {"type": ["enabled"]}}])
async def test_other_words_are_refused(make_gateway: Callable[..., Any], field: Any) -> None:
    async with make_gateway() as gateway:
        answer = await gateway.chat(**field)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "thinking.type")
