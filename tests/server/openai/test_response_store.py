"""Stored responses: continued, read, deleted; bounded, and invisible to other keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from openai.types.responses import ResponseItemList

from server.args import Secret
from server.openai.responses.store import ItemNotFound, ResponseNotFound, ResponseStore, StoredResponse
from tests.server.conftest import Gateway

ONE, TWO = "sk-one-0123456789", "sk-two-0123456789"
KEYS = {"api_keys": (Secret(ONE), Secret(TWO))}
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}]


async def create(gateway: Gateway, key: str = ONE, **fields: Any) -> httpx.Response:
    body = {"model": "test-model", "input": "hi", **fields}
    return await gateway.client.post("/v1/responses", json=body, headers={"Authorization": f"Bearer {key}"})


async def call(gateway: Gateway, method: str, path: str, key: str = ONE) -> httpx.Response:
    return await gateway.client.request(method, f"/v1/responses/{path}", headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_conversation_goes_on(make_gateway: Callable[..., Any], streamed: bool) -> None:
    script = {"<|im_start|>tool": "The answer is one.", "": f"<think>\nhm\n</think>\n\n{CALL}"}
    async with make_gateway(script) as gateway:
        first = await create(gateway, tools=TOOLS, instructions="Only once.", stream=streamed)
        if streamed:
            first_id = first.text.partition('"id":"resp_')[2].partition('"')[0]
            first = await call(gateway, "GET", f"resp_{first_id}")
        body = first.json()
        call_id = body["output"][-1]["call_id"]
        output = [{"type": "function_call_output", "call_id": call_id, "output": "one"}]
        second = (await create(gateway, input=output, tools=TOOLS, previous_response_id=body["id"])).json()
        third = (await create(gateway, input="More.", previous_response_id=second["id"])).json()
    assert second["previous_response_id"] == body["id"]
    assert third["previous_response_id"] == second["id"]
    text = gateway.engine.requests[-1].text
    assert text == (
        '<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n'
        "</tool_call><|im_end|>\n<|im_start|>tool\none<|im_end|>\n<|im_start|>assistant\nThe answer is one.<|im_end|>\n"
        "<|im_start|>user\nMore.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("typed", [True, False])
async def test_items_that_are_only_named_are_those_that_were_stored(
    make_gateway: Callable[..., Any], typed: bool
) -> None:
    """Vercel's provider sends every stored item but the results of tools as a reference."""
    script = {"<|im_start|>tool": "The answer is one.", "": f"<think>\nhm\n</think>\n\nLet me see.{CALL}"}
    async with make_gateway(script) as gateway:
        asked: list[Any] = [{"id": "mine", "role": "user", "content": "hi"}]
        first = (await create(gateway, input=asked, tools=TOOLS)).json()
        assert [item["type"] for item in first["output"]] == ["reasoning", "message", "function_call"]
        named = [{"id": item["id"], **({"type": "item_reference"} if typed else {})} for item in first["output"]]
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "one"}
        question = [{"type": "item_reference", "id": "mine"}]
        second = await create(gateway, input=[*question, *named, result], tools=TOOLS)
        assert second.status_code == 200, second.text
        by_reference = gateway.engine.requests[-1].text
        again = await create(gateway, input=[*asked, *first["output"], result], tools=TOOLS)
        assert again.status_code == 200
        assert gateway.engine.requests[-1].text == by_reference
        assert "Let me see." in by_reference
        body = second.json()
        third = await create(gateway, input=[*question, {"type": "item_reference", "id": body["output"][0]["id"]}])
        assert third.status_code == 200
        assert "The answer is one." in gateway.engine.requests[-1].text


async def test_items_that_are_not_there_are_named(make_gateway: Callable[..., Any]) -> None:
    def of(response: httpx.Response) -> list[Any]:
        return [{"role": "user", "content": "x"}, {"type": "item_reference", "id": response.json()["output"][0]["id"]}]

    async with make_gateway(**KEYS) as gateway:
        kept, left = await create(gateway), await create(gateway, store=False)
        gone = await create(gateway)
        await call(gateway, "DELETE", gone.json()["id"])
        assert (await create(gateway, input=of(kept))).status_code == 200
        for refused in (
            await create(gateway, input=of(left)),
            await create(gateway, input=of(gone)),
            await create(gateway, TWO, input=of(kept)),
        ):
            error = refused.json()["error"]
            assert (refused.status_code, error["param"], error["code"]) == (404, "input[1]", "not_found")


ITEMS: list[Any] = [
    {"role": "user", "content": "x"},
    {"role": "developer", "content": [{"type": "text", "text": "x"}]},
    {"role": "assistant", "content": "x"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "x"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "custom_tool_call", "call_id": "d", "name": "g", "input": "x"},
    {"type": "function_call_output", "call_id": "c", "output": "1"},
    {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "1"}]},
]


async def test_every_kind_of_item_is_listed_as_the_sdk_types_it(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway() as gateway:
        body = (await create(gateway, input=ITEMS)).json()
        listed = (await call(gateway, "GET", f"{body['id']}/input_items?order=asc")).json()
    page = ResponseItemList.model_validate(listed)
    assert [type(item).__name__ for item in page.data] == [
        *("ResponseInputMessageItem", "ResponseInputMessageItem", "ResponseOutputMessage", "ResponseOutputMessage"),
        *("ResponseOutputMessage", "ResponseReasoningItem", "ResponseReasoningItem", "ResponseFunctionToolCallItem"),
        *("ResponseCustomToolCallItem", "ResponseFunctionToolCallOutputItem", "ResponseCustomToolCallOutputItem"),
    ]


async def test_read_and_delete(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(**KEYS) as gateway:
        body = (await create(gateway)).json()
        path = body["id"]
        assert (await call(gateway, "GET", path)).json() == body
        assert (await call(gateway, "GET", path + "?stream=true")).status_code == 400
        cancel = await call(gateway, "POST", path + "/cancel")
        assert (cancel.status_code, cancel.json()["error"]["param"]) == (400, "response_id")
        deleted = await call(gateway, "DELETE", path)
        assert deleted.json() == {"id": path, "object": "response", "deleted": True}
        for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            assert (await call(gateway, method, path + tail)).status_code == 404
        assert (await create(gateway, previous_response_id=path)).status_code == 400


async def test_another_keys_response_looks_unknown(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(**KEYS) as gateway:
        mine = (await create(gateway, ONE)).json()["id"]
        for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items"), ("POST", "/cancel")):
            theirs = await call(gateway, method, mine + tail, TWO)
            unknown = await call(gateway, method, "resp_" + "0" * 48 + tail, TWO)
            assert theirs.status_code == unknown.status_code == 404
            assert theirs.text.replace(mine, "ID") == unknown.text.replace("resp_" + "0" * 48, "ID")
        theirs = await create(gateway, TWO, previous_response_id=mine)
        assert (theirs.status_code, theirs.json()["error"]["code"]) == (400, "previous_response_not_found")
        assert (await call(gateway, "GET", mine, ONE)).status_code == 200


async def test_store_false_is_not_kept(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway() as gateway:
        for streamed in (False, True):
            response = await create(gateway, store=False, stream=streamed)
            name = "resp_" + response.text.partition('"id":"resp_')[2].partition('"')[0]
            assert len(name) == 53
            assert (await call(gateway, "GET", name)).status_code == 404


async def test_settings_bound_the_store(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(response_store_bytes=10) as gateway:
        body = (await create(gateway)).json()
        assert (await call(gateway, "GET", body["id"])).status_code == 404
    async with make_gateway(response_store_seconds=0.0) as gateway:
        body = (await create(gateway)).json()
        assert (await call(gateway, "GET", body["id"])).status_code == 404


async def test_input_items_in_pages(make_gateway: Callable[..., Any]) -> None:
    items = [{"role": "user", "content": f"number {number}"} for number in range(5)]
    async with make_gateway() as gateway:
        name = (await create(gateway, input=items)).json()["id"]

        async def page(query: str) -> Any:
            response = await call(gateway, "GET", f"{name}/input_items?{query}")
            assert response.status_code == 200, response.text
            return response.json()

        whole = await page("order=asc")
        assert [item["content"][0]["text"] for item in whole["data"]] == [item["content"] for item in items]
        assert whole["has_more"] is False
        newest = await page("limit=2")
        assert [item["content"][0]["text"] for item in newest["data"]] == ["number 4", "number 3"]
        assert newest["has_more"] is True
        rest = await page(f"after={newest['last_id']}&limit=100")
        assert [item["content"][0]["text"] for item in rest["data"]] == ["number 2", "number 1", "number 0"]
        assert rest["first_id"] == rest["data"][0]["id"]
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing", "limit=%C2%B2", "limit=1000"):
            response = await call(gateway, "GET", f"{name}/input_items?{query}")
            assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error"), query
        typed = (await create(gateway, input="hi")).json()["id"]
        ResponseItemList.model_validate((await call(gateway, "GET", f"{typed}/input_items")).json(), strict=True)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def entry(name: str, size: int = 100) -> StoredResponse:
    return StoredResponse(name, b"x" * (size - 10), b"x" * 5, (b"x" * 5,))


def test_old_entries_go() -> None:
    clock = Clock()
    store = ResponseStore(10_000, 60.0, clock)
    store.put("", entry("a"))
    clock.now = 59.9
    store.put("", entry("b"))
    assert store.get("", "a").id == "a"
    clock.now = 60.0
    with pytest.raises(ResponseNotFound):
        store.get("", "a")
    assert (len(store), store.size) == (1, 100)
    clock.now = 200.0
    store.put("", entry("c"))
    assert (len(store), store.size) == (1, 100)


def test_the_cap_holds_and_the_oldest_go_first() -> None:
    store = ResponseStore(1000, 60.0, Clock())
    for number in range(25):
        store.put("", entry(str(number)))
        assert store.size <= 1000
    assert len(store) == 10
    assert store.get("", "15").id == "15"
    with pytest.raises(ResponseNotFound):
        store.get("", "14")
    store.put("", entry("huge", 1001))
    assert len(store) == 10


def test_one_key_cannot_push_out_the_others() -> None:
    store = ResponseStore(1000, 60.0, Clock())
    store.put("one", entry("kept"))
    for number in range(50):
        store.put("two", entry(str(number)))
    assert store.get("one", "kept").id == "kept"
    assert (len(store), store.size) == (3, 300)
    for tenant in "abcdefghijkl":
        store.put(tenant, entry(tenant, 250))
        assert store.size <= 1000
    with pytest.raises(ResponseNotFound):
        store.get("one", "kept")


def test_nothing_is_left_of_what_is_deleted() -> None:
    store = ResponseStore(1000, 60.0, Clock())
    store.put("t", entry("a"))
    store.delete("t", "a")
    with pytest.raises(ResponseNotFound):
        store.delete("t", "a")
    assert (len(store), store.size) == (0, 0)


def test_finding_an_item_counts_and_ends_with_its_response() -> None:
    store = ResponseStore(10_000, 60)
    store.put("", StoredResponse("a", b"x", b"x", (b"1", b"2"), ("i", "j")))
    counted = store.size
    assert counted > 500
    store.put("", StoredResponse("b", b"x", b"x", (b"3", b"4"), ("j", "k")))
    assert store.holder("", "i", "input[0]").id == "a"
    assert store.holder("", "j", "input[0]").id == "b"
    store.delete("", "a")
    assert store.size == counted
    assert store.holder("", "j", "input[0]").id == "b"
    for item_id in ("i", "never"):
        with pytest.raises(ItemNotFound):
            store.holder("", item_id, "input[0]")
    store.delete("", "b")
    with pytest.raises(ItemNotFound):
        store.holder("", "j", "input[0]")
    assert not store._tenants


def test_an_item_is_found_as_long_as_one_response_holds_it() -> None:
    """Clients send items of earlier turns again, whole."""
    store = ResponseStore(10_000, 60)
    for name in "abc":
        store.put("", StoredResponse(name, b"x", b"x", (b"1", b"2"), ("i", "i", name)))
    for deleted, holder in (("c", "b"), ("a", "b")):
        store.delete("", deleted)
        assert store.holder("", "i", "input[0]").id == holder
    store.delete("", "b")
    with pytest.raises(ItemNotFound):
        store.holder("", "i", "input[0]")
    assert not store._tenants
