"""What one request may cost the event loop: long work is done elsewhere, and answers are written as they grow."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import orjson
import pytest

from engine.messages import TokenLogprob, TopLogprob
from server.json_response import MANY_LOGPROBS, JsonArray
from server.openai.completion_text import LogprobsWriter
from server.prompts import INLINE_CHARS
from tests.fakes import Reply, ScriptedEngine

LONG = "x" * (INLINE_CHARS // 4)
MANY = [LONG] * 8


class Threads:
    """Records whether a function was called on the event loop's thread."""

    def __init__(self) -> None:
        self.on_loop: list[bool] = []

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.on_loop.append(threading.current_thread() is threading.main_thread())
            return function(*args, **kwargs)

        return noted


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": MANY}),
        ("/generate", {"text": MANY}),
        ("/v1/embeddings", {"input": MANY}),
    ],
)
async def test_many_prompts_are_encoded_beside_the_event_loop(
    make_gateway: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    engine, threads = ScriptedEngine("ok"), Threads()
    async with make_gateway(engine) as gateway:
        monkeypatch.setattr(engine.tokenizer, "encode", threads.around(engine.tokenizer.encode))
        response = await gateway.client.post(path, json=body)
        assert response.status_code == 200, response.text
    assert len(threads.on_loop) == len(MANY)
    assert not any(threads.on_loop)


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_of_a_long_prompt_are_written_beside_the_event_loop(
    make_gateway: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    threads = Threads()
    monkeypatch.setattr(LogprobsWriter, "prompt", threads.around(LogprobsWriter.prompt))
    async with make_gateway("ok") as gateway:
        body = {"prompt": "y" * (MANY_LOGPROBS + 2), "logprobs": 2, "echo": True, "stream": stream}
        response = await gateway.client.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
    assert threads.on_loop == [False]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/generate"])
async def test_logprobs_are_written_once_and_as_they_come(
    make_gateway: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """A native stream repeats them in every chunk: written anew each time they would cost the square of its length."""
    sizes: list[int] = []
    extend = JsonArray.extend

    def noted(array: JsonArray, items: Any) -> None:
        sizes.append(len(items))
        extend(array, items)

    monkeypatch.setattr(JsonArray, "extend", noted)
    tokens = 200
    async with make_gateway(Reply("z" * tokens, chunk=1)) as gateway:
        if path == "/generate":
            body: dict[str, Any] = {"text": "hi", "return_logprob": True, "top_logprobs_num": 1, "stream": True}
            body["sampling_params"] = {"max_new_tokens": tokens}
        else:
            body = {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 1}
        response = await gateway.client.post(path, json=body)
        assert response.status_code == 200, response.text
    assert max(sizes) == 1
    assert sum(sizes) == tokens * (2 if path == "/generate" else 1)


def test_an_array_that_grows_is_the_array() -> None:
    array = JsonArray()
    assert orjson.dumps(array.json()) == b"[]"
    array.extend([])
    array.extend([1, {"a": None}])
    array.extend(())
    array.extend((["b"],))
    assert orjson.loads(orjson.dumps({"x": array.json()})) == {"x": [1, {"a": None}, ["b"]]}


def test_logprobs_are_no_work_for_the_garbage_collector() -> None:
    """There may be half a million of them in one answer; every collection would walk through all."""
    decoded = msgspec.msgpack.decode(
        msgspec.msgpack.encode(TokenLogprob(1, -0.5, (TopLogprob(1, -0.5),))), type=TokenLogprob
    )
    assert not gc.is_tracked(decoded)
    assert not gc.is_tracked(decoded.top[0])
