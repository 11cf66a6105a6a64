"""/v1/conversations through OpenAI's SDK: kept, listed, continued by responses, bounded, and of one key only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest

from server.args import Secret
from server.openai.responses.store import ResponseStore, StoredResponse
from tests.server.conftest import Gateway

ONE, TWO = "sk-one-0123456789", "sk-two-0123456789"
KEYS = {"api_keys": (Secret(ONE), Secret(TWO))}
USER = {"type": "message", "role": "user", "content": "Remember seven."}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS: Any = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}]


def sdk(gateway: Gateway, key: str = ONE) -> openai.AsyncOpenAI:
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app=gateway.app, client=("127.0.0.1", 1)))
    return openai.AsyncOpenAI(
        base_url="http://localhost/v1",
        api_key=key,
        http_client=http,
        max_retries=0,
        _strict_response_validation=True,
    )


@asynccontextmanager
async def clients(make_gateway: Callable[..., Any], script: Any = "Hello!", **args: Any) -> AsyncIterator[Any]:
    async with make_gateway(script, **{**KEYS, **args}) as gateway:
        yield gateway, sdk(gateway)


async def _texts(client: openai.AsyncOpenAI, name: str, **query: Any) -> list[str]:
    found = []
    async for item in client.conversations.items.list(name, **query):
        plain = item.model_dump()
        found.append(plain["content"][0]["text"] if plain["type"] == "message" else plain["type"])
    return found


async def test_made_read_changed_and_deleted(make_gateway: Callable[..., Any]) -> None:
    async with clients(make_gateway) as (_, client):
        made = await client.conversations.create(items=[USER], metadata={"a": "b"})
        assert made.id.startswith("conv_")
        assert (made.object, made.metadata) == ("conversation", {"a": "b"})
        assert await client.conversations.retrieve(made.id) == made
        changed = await client.conversations.update(made.id, metadata={"c": "d"})
        assert (changed.id, changed.created_at, changed.metadata) == (made.id, made.created_at, {"c": "d"})
        assert await _texts(client, made.id) == ["Remember seven."]
        gone = await client.conversations.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)
        empty = await client.conversations.create()
        assert await _texts(client, empty.id) == []


async def test_items(make_gateway: Callable[..., Any]) -> None:
    async with clients(make_gateway) as (_, client):
        name = (await client.conversations.create(items=[USER])).id
        more: Any = [{"role": "user", "content": str(at)} for at in range(45)]
        added = await client.conversations.items.create(name, items=more)
        assert len(added.data) == 45
        assert added.has_more is False
        words = ["Remember seven.", *(str(at) for at in range(45))]
        assert await _texts(client, name, order="asc", limit=7) == words
        assert await _texts(client, name) == words[::-1]
        assert await _texts(client, name, order="asc", after=added.data[42].id) == ["43", "44"]
        one = await client.conversations.items.retrieve(added.data[3].id, conversation_id=name)
        assert one == added.data[3]
        left = await client.conversations.items.delete(added.data[3].id, conversation_id=name)
        assert left.id == name
        assert "3" not in await _texts(client, name)
        for lost in (added.data[3].id, "msg_nope"):
            with pytest.raises(openai.NotFoundError) as raised:
                await client.conversations.items.retrieve(lost, conversation_id=name)
            assert raised.value.param == "item_id"


@pytest.mark.parametrize("store", [True, False])
@pytest.mark.parametrize("named", [str, lambda name: {"id": name}])
async def test_responses_go_on_from_it_and_into_it(
    make_gateway: Callable[..., Any], named: Callable[[str], Any], store: bool
) -> None:
    script = {"<|im_start|>tool": "Seven.", "": f"<think>\nhm\n</think>\n\n{CALL}"}
    async with clients(make_gateway, script) as (gateway, client):
        name = (await client.conversations.create(items=[USER])).id
        fields: Any = {"model": "test-model", "conversation": named(name), "store": store, "tools": TOOLS}
        first = await client.responses.create(input="What?", **fields)
        assert first.conversation is not None
        assert first.conversation.id == name
        called = first.output[-1]
        assert called.type == "function_call"
        output: Any = [{"type": "function_call_output", "call_id": called.call_id, "output": "seven"}]
        async with client.responses.stream(input=output, **fields) as stream:
            last = await stream.get_final_response()
        assert last.output_text == "Seven."
        found = await _texts(client, name, order="asc")
        assert found == ["Remember seven.", "What?", "reasoning", "function_call", "function_call_output", "Seven."]
        await client.responses.create(model="test-model", conversation=name)
        prompt = gateway.engine.requests[-1].text
        words = ["Remember seven.", "What?", '"name": "f"', "<|im_start|>tool\nseven", "Seven."]
        assert [prompt.index(word) for word in words] == sorted(prompt.index(word) for word in words)
        tokens = await client.responses.input_tokens.count(model="test-model", conversation=name)
        assert tokens.input_tokens > len("".join(words))


async def test_what_fails_leaves_it_as_it_is(make_gateway: Callable[..., Any]) -> None:
    async with clients(make_gateway) as (_, client):
        name = (await client.conversations.create(items=[USER])).id
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="test-model", input="x", conversation=name, temperature=9)
        assert await _texts(client, name) == ["Remember seven."]
        empty = (await client.conversations.create()).id
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="test-model", conversation=empty)


async def test_it_is_of_one_key_only_and_no_response(make_gateway: Callable[..., Any]) -> None:
    async with clients(make_gateway) as (gateway, client):
        name = (await client.conversations.create(items=[USER])).id
        made = (await client.responses.create(model="test-model", input="hi")).id
        other = sdk(gateway, TWO)
        with pytest.raises(openai.NotFoundError):
            await other.conversations.retrieve(name)
        for mine, wrong in ((other, name), (client, "conv_nope"), (client, made)):
            with pytest.raises(openai.NotFoundError) as raised:
                await mine.responses.create(model="test-model", input="x", conversation=wrong)
            assert raised.value.param == "conversation"
            with pytest.raises(openai.NotFoundError):
                await mine.conversations.delete(wrong)
            with pytest.raises(openai.NotFoundError):
                await mine.conversations.items.create(wrong, items=[USER])
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(name)
        with pytest.raises(openai.NotFoundError):
            await client.responses.delete(name)
        with pytest.raises(openai.BadRequestError):
            await client.responses.create(model="test-model", input="x", previous_response_id=name)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("", {"items": 5}, "items"),
        ("", {"items": [5]}, "items[0]"),
        ("", {"items": [USER, {"type": "message", "role": "king", "content": "x"}]}, "items[1].role"),
        ("", {"items": [{"type": "item_reference", "id": "msg_1"}]}, "items[0].type"),
        ("", {"metadata": {"a": 5}}, "metadata"),
        ("", {"metadata": {str(at): "" for at in range(20)}}, "metadata"),
        ("/NAME", {}, "metadata"),
        ("/NAME/items", {}, "items"),
        ("/NAME/items", {"items": []}, "items"),
    ],
)
async def test_refusals_name_the_field(make_gateway: Callable[..., Any], path: str, body: Any, param: str) -> None:
    async with clients(make_gateway) as (gateway, client):
        name = (await client.conversations.create()).id
        url = "/v1/conversations" + path.replace("NAME", name)
        answer = await gateway.client.post(url, json=body, headers={"Authorization": f"Bearer {ONE}"})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)


async def test_one_that_is_too_large_is_refused_and_kept_as_it_was(make_gateway: Callable[..., Any]) -> None:
    async with clients(make_gateway, response_store_bytes=8000) as (_, client):
        name = (await client.conversations.create(items=[USER])).id
        big: Any = {"role": "user", "content": "x" * 3000}
        with pytest.raises(openai.APIStatusError) as raised:
            await client.conversations.items.create(name, items=[big])
        assert raised.value.status_code == 413
        assert (await client.responses.create(model="test-model", input=[big], conversation=name)).status == "completed"
        assert await _texts(client, name) == ["Remember seven."]


def test_an_entry_that_is_put_again_counts_once() -> None:
    store = ResponseStore(1000, 60)
    for size in (100, 300, 200):
        assert store.put("t", StoredResponse("a", b"", b"", (b"x" * (size // 2),), conversation=True))
        assert (store.size, len(store)) == (size // 2, 1)
    assert not store.put("t", StoredResponse("a", b"", b"", (b"x" * 999,), conversation=True))
    found = store.find("t", "a")
    assert found is not None
    assert len(found.turns[0]) == 100
