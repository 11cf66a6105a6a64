"""What a tool returned is not the client's to choose: media in it is told of, on every dialect, and nothing is fetched.

Elsewhere media is refused (test_messages.py, and the tests of the other dialects).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.conftest import Gateway

URL = "http://127.0.0.1:1/canary"
TEXT = "before"
KINDS = [
    ({"type": "image_url", "image_url": {"url": URL}}, "image"),
    ({"type": "input_image", "image_url": URL}, "image"),
    ({"type": "input_audio", "input_audio": {"data": URL, "format": "wav"}}, "audio"),
    ({"type": "input_file", "file_url": URL}, "file"),
    ({"type": "file", "file": {"file_id": URL}}, "file"),
    ({"type": "video_url", "video_url": {"url": URL}}, "video"),
]
BLOCKS = [
    ({"type": "image", "source": {"type": "url", "url": URL}}, "image"),
    ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": URL}}, "image"),
    ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": URL}}, "file"),
]


def check(gateway: Gateway, answer: Any, noun: str) -> None:
    assert answer.status_code == 200, answer.text
    prompt = gateway.engine.requests[-1].text or ""
    assert TEXT in prompt
    assert f"[{noun} left out: this model reads text only]" in prompt
    assert "canary" not in prompt


@pytest.mark.parametrize(("part", "noun"), KINDS)
async def test_chat(gateway: Gateway, part: Any, noun: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
    content = [{"type": "text", "text": TEXT}, part]
    for result in (
        [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": content}],
        [
            {"role": "assistant", "function_call": call["function"]},
            {"role": "function", "name": "view", "content": content},
        ],
    ):
        check(gateway, await gateway.chat({"role": "user", "content": "look"}, *result), noun)


@pytest.mark.parametrize(("part", "noun"), KINDS)
@pytest.mark.parametrize("kind", ["function_call", "custom_tool_call"])
async def test_responses(gateway: Gateway, part: Any, noun: str, kind: str) -> None:
    call = {"type": kind, "call_id": "c", "name": "view", "arguments": "{}", "input": ""}
    output = {"type": f"{kind}_output", "call_id": "c", "output": [{"type": "input_text", "text": TEXT}, part]}
    items = [{"role": "user", "content": "look"}, call, output]
    first = await gateway.client.post("/v1/responses", json={"model": "test-model", "input": items})
    check(gateway, first, noun)
    body = {"model": "test-model", "input": "and now?", "previous_response_id": first.json()["id"]}
    check(gateway, await gateway.client.post("/v1/responses", json=body), noun)
    listed = await gateway.client.get(f"/v1/responses/{first.json()['id']}/input_items")
    assert listed.json()["data"][0]["output"] == output["output"]


@pytest.mark.parametrize(("block", "noun"), BLOCKS)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
async def test_messages(gateway: Gateway, block: Any, noun: str, path: str) -> None:
    call = {"type": "tool_use", "id": "t", "name": "view", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": TEXT}, block]}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    body = {"model": "test-model", "max_tokens": 9, "messages": messages}
    answer = await gateway.client.post(path, json=body)
    if path == "/v1/messages":
        check(gateway, answer, noun)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("part", [{"type": "resource"}, {"type": 5}, {}, {"type": "text"}, 5])
async def test_what_is_no_part_at_all_is_still_refused(gateway: Gateway, part: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c", "content": [part]}
    answer = await gateway.chat({"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}, result)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("messages[2].content[0]")
