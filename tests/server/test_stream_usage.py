"""usage in the chunks of a stream: null, or with continuous_usage_stats the counts so far, on chat and completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes import Reply
from tests.server.conftest import events

ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi", "max_tokens": 50},
}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "b"}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


async def chunks(gateway: Any, path: str, **fields: Any) -> list[Any]:
    answer = await gateway.client.post(path, json={**ROUTES[path], "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    found = events(answer.text)
    assert found.pop() == "[DONE]"
    return found


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"continuous_usage_stats": False}])
async def test_nobody_asked(make_gateway: Callable[..., Any], path: str, options: Any) -> None:
    async with make_gateway(Reply("Hello there", chunk=3)) as gateway:
        assert all("usage" not in chunk for chunk in await chunks(gateway, path, stream_options=options))


@pytest.mark.parametrize("path", ROUTES)
async def test_the_usage_comes_last_and_is_null_before(make_gateway: Callable[..., Any], path: str) -> None:
    async with make_gateway(Reply("Hello there", chunk=3)) as gateway:
        *before, last = await chunks(gateway, path, stream_options={"include_usage": True})
    assert before
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in before)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_every_chunk_has_the_counts_so_far(
    make_gateway: Callable[..., Any], path: str, include: bool, n: int
) -> None:
    options = {"include_usage": include, "continuous_usage_stats": True}
    async with make_gateway(Reply("Hello there", chunk=3)) as gateway:
        found = await chunks(gateway, path, stream_options=options, n=n)
        whole = (await gateway.client.post(path, json={**ROUTES[path], "n": n})).json()["usage"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert len(set(counts)) >= 4 * n
    assert {chunk["usage"]["prompt_tokens"] for chunk in found} == {whole["prompt_tokens"]}
    assert all(chunk["usage"].keys() == whole.keys() for chunk in found)
    assert found[-1]["usage"] == whole
    assert [chunk for chunk in found if not chunk["choices"]] == (found[-1:] if include else [])


async def test_calls_and_the_extension_of_an_answer(make_gateway: Callable[..., Any]) -> None:
    """A chunk stays valid JSON with both at its end."""
    fields = {"tools": TOOLS, "stream_options": {"continuous_usage_stats": True}}
    async with make_gateway(Reply('{"name": "f", "arguments": {"a": "b"}}', chunk=4)) as gateway:
        found = await chunks(gateway, "/v1/chat/completions", **fields)
    assert found[-1]["callgate"]["rescued_calls"]
    assert found[-1]["usage"]["completion_tokens"] == 39
    async with make_gateway(Reply(CALL, chunk=4)) as gateway:
        found = await chunks(gateway, "/v1/chat/completions", **fields)
    assert found[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all(chunk["usage"] for chunk in found)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_choices_find_of_each_other_was_not_cached(
    make_gateway: Callable[..., Any], path: str, stream: bool
) -> None:
    """The prompt counts once, and so does what was known of it when it came."""

    def script(request: Any, index: int) -> Reply:
        return Reply("Hello there", chunk=3, cached_tokens=2 if index else 1)

    async with make_gateway(script) as gateway:
        if stream:
            usage = (await chunks(gateway, path, n=3, stream_options={"include_usage": True}))[-1]["usage"]
        else:
            usage = (await gateway.client.post(path, json={**ROUTES[path], "n": 3})).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 1
