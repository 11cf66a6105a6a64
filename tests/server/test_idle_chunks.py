"""Silence in a stream is filled with real chunks, which keep to the rules of every other chunk: the role comes first and
once, and nothing comes of a choice that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import Reply
from tests.server.conftest import events
from tests.server.openai.response_checks import check_response
from tests.server.sse import named_events

PACE = {"stream_start_timeout": 0.02, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.03}
EARLY, LATE = Reply("a"), Reply("bc", chunk=1, first_delay=0.4, delay=0.1)


@pytest.mark.parametrize("replies", [(LATE,), (EARLY, LATE), (LATE, EARLY), (LATE, LATE), (EARLY, LATE, EARLY)])
async def test_chat(make_gateway: Callable[..., Any], replies: tuple[Reply, ...]) -> None:
    async with make_gateway(lambda request, index: replies[index], **PACE) as gateway:
        chunks = (await gateway.stream(n=len(replies)))[:-1]
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(range(len(replies)))
    for index, reply in enumerate(replies):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        assert "".join(choice["delta"].get("content", "") for choice in own) == reply.text
    silent = [chunk for chunk in chunks for choice in chunk["choices"] if not choice["delta"]]
    assert len(silent) > len(replies), "no idle chunk came"


@pytest.mark.parametrize("replies", [(LATE,), (EARLY, LATE), (LATE, EARLY)])
async def test_completions(make_gateway: Callable[..., Any], replies: tuple[Reply, ...]) -> None:
    body = {"model": "test-model", "prompt": "x", "stream": True, "n": len(replies)}
    async with make_gateway(lambda request, index: replies[index], **PACE) as gateway:
        chunks = events((await gateway.client.post("/v1/completions", json=body)).text)[:-1]
    assert {choice["index"] for chunk in chunks for choice in chunk["choices"]} == set(range(len(replies)))
    for index, reply in enumerate(replies):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [choice["finish_reason"] for choice in own] == [None] * (len(own) - 1) + ["stop"]
        assert "".join(choice["text"] for choice in own) == reply.text
    assert any(not choice["text"] for chunk in chunks[:-1] for choice in chunk["choices"]), "no idle chunk came"


async def test_the_other_dialects(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(LATE, **PACE) as gateway:
        body = {"model": "test-model", "input": "x", "stream": True}
        found = named_events((await gateway.client.post("/v1/responses", json=body)).text)
        assert [event["sequence_number"] for event in found] == list(range(len(found)))
        assert [event["type"] for event in found[:2]] == ["response.created", "response.in_progress"]
        assert check_response(found[-1]["response"])["output"][0]["content"][0]["text"] == "bc"
        assert [event["type"] for event in found].count("response.in_progress") > 1, "no idle event came"
        body = {"model": "test-model", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9, "stream": True}
        kinds = [event["type"] for event in named_events((await gateway.client.post("/v1/messages", json=body)).text)]
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    assert next(kind for kind in kinds if kind != "ping") == "message_start"
    assert kinds.count("ping") > 1, "no idle event came"
