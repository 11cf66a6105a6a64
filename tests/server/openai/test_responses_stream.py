"""The event sequence of /v1/responses: complete, typed, the same answer as without a stream, whatever comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import orjson
import pytest

from server.blocks import BlockFold
from server.openai.responses.events import ResponseEvents, ResponseStyle
from tests.fakes import Reply, ScriptedEngine
from tests.live import eventually
from tests.server.conftest import Gateway
from tests.server.openai.response_checks import check_response, check_stream
from tests.server.sse import named_events

TOOLS = [
    {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {"city": {}}}},
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {}, "b": {}}}},
]
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pârïs"}}\n</tool_call>'
ADD = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
ANSWERS = {
    "text": "Sunny, 21 °C.",
    "nothing": "",
    "call": WEATHER,
    "calls": f"{WEATHER}\n{ADD}",
    "preamble": f"Let me look.\n{WEATHER}",
    "thought": "<think>\nHm.\n</think>\n\nSunny.",
    "thought and calls": f"<think>\nHm, two.\n</think>\n\n{WEATHER}\n{ADD}",
    "only thought": "<think>\nHm, and on and on",
    "text after a call": f"{WEATHER}\nThat was it.",
}


async def ask(gateway: Gateway, **fields: Any) -> Any:
    return await gateway.client.post("/v1/responses", json={"model": "test-model", "input": "hi", **fields})


async def stream(gateway: Gateway, **fields: Any) -> list[Any]:
    response = await ask(gateway, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return named_events(response.text)


def plain(output: list[Any]) -> list[Any]:
    """Output without what is random."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in output]


@pytest.mark.parametrize("chunk", [0, 1, 3])
@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
async def test_a_stream_says_what_the_whole_answer_says(
    make_gateway: Callable[..., Any], answer: str, chunk: int
) -> None:
    async with make_gateway(Reply(answer, chunk=chunk, cached_tokens=3)) as gateway:
        streamed = check_stream(await stream(gateway, tools=TOOLS))
        whole = check_response((await ask(gateway, tools=TOOLS)).json())
    assert streamed["status"] == whole["status"] == "completed"
    assert plain(streamed["output"]) == plain(whole["output"])
    assert {**streamed, "id": "", "output": []}.keys() == whole.keys()
    assert streamed["usage"] == whole["usage"]
    assert streamed["usage"]["input_tokens_details"]["cached_tokens"] == 3
    assert any(item["type"] in ("message", "function_call") for item in whole["output"])
    call_ids = [item["call_id"] for body in (streamed, whole) for item in body["output"] if "call_id" in item]
    assert len(set(call_ids)) == len(call_ids)


@pytest.mark.parametrize("asked", [{"summary": "auto"}, {"summary": "detailed"}, {"generate_summary": "concise"}])
@pytest.mark.parametrize("answer", [ANSWERS["thought"], ANSWERS["thought and calls"], ANSWERS["only thought"]])
async def test_who_asks_for_a_summary_reads_the_reasoning_there(
    make_gateway: Callable[..., Any], answer: str, asked: dict[str, str]
) -> None:
    async with make_gateway(Reply(answer, chunk=3)) as gateway:
        streamed = check_stream(await stream(gateway, tools=TOOLS, reasoning=asked))
        whole = check_response((await ask(gateway, tools=TOOLS, reasoning=asked)).json())
        again = await ask(gateway, input=[{"role": "user", "content": "hi"}, *whole["output"][:1]])
        assert again.status_code == 200, again.text
    assert plain(streamed["output"]) == plain(whole["output"])
    first = whole["output"][0]
    assert first["content"] == []
    assert first["summary"][0]["type"] == "summary_text"
    assert first["summary"][0]["text"].startswith("Hm")
    assert whole["reasoning"] == {"effort": None, "summary": next(iter(asked.values()))}


@pytest.mark.parametrize("asked", [{}, {"summary": None}, {"summary": "none"}, {"effort": "low"}])
async def test_who_asks_for_none_reads_it_as_reasoning(make_gateway: Callable[..., Any], asked: Any) -> None:
    async with make_gateway(Reply(ANSWERS["thought"], chunk=3)) as gateway:
        streamed = check_stream(await stream(gateway, reasoning=asked))
    first = streamed["output"][0]
    assert first["summary"] == []
    assert first["content"] == [{"type": "reasoning_text", "text": "Hm."}]


@pytest.mark.parametrize("limit", [1, 5, 20, 45, 75, 80, 82, 90, 110])
async def test_cut_answers_are_incomplete_and_hold_no_broken_call(make_gateway: Callable[..., Any], limit: int) -> None:
    async with make_gateway(Reply(ANSWERS["preamble"], chunk=1)) as gateway:
        events = await stream(gateway, tools=TOOLS, max_output_tokens=limit)
        streamed = check_stream(events)
        whole = check_response((await ask(gateway, tools=TOOLS, max_output_tokens=limit)).json())
    size = len(ANSWERS["preamble"].encode())
    assert streamed["status"] == whole["status"] == ("completed" if limit >= size else "incomplete")
    assert plain(streamed["output"]) == plain(whole["output"])
    if limit < size:
        assert events[-1]["type"] == "response.incomplete"
        assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
        calls = [item for item in whole["output"] if item["type"] == "function_call"]
        assert [orjson.loads(call["arguments"]) for call in calls] == ([{"city": "Pârïs"}] if limit >= 82 else [])


async def test_parallel_false_ends_after_the_first_call(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(ANSWERS["calls"], chunk=2)) as gateway:
        final = check_stream(await stream(gateway, tools=TOOLS, parallel_tool_calls=False))
    assert [item["name"] for item in final["output"]] == ["get_weather"]
    assert final["parallel_tool_calls"] is False


async def test_a_failure_in_the_stream_is_told_twice(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply(ANSWERS["thought"], chunk=4, fail_after=5)) as gateway:
        events = await stream(gateway)
        final = check_stream(events)
        assert gateway.engine.running == 0
        gone = await gateway.client.get(f"/v1/responses/{final['id']}")
    failed, error = events[-2:]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": "The engine process died."}
    assert error["type"] == "error"
    assert error["message"] == error["error"]["message"] == "The engine process died."
    assert gone.status_code == 404


async def test_a_failure_before_the_first_token_is_a_plain_error(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello", fail_after=0)) as gateway:
        response = await ask(gateway, stream=True)
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "The engine process died."
    assert response.headers["retry-after"]


async def test_a_failure_after_a_slow_start_still_opens_the_response(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("Hello", first_delay=0.3, fail_after=0), stream_start_timeout=0.05) as gateway:
        events = await stream(gateway)
    assert check_stream(events)["error"]["message"] == "The engine process died."
    assert [event["type"] for event in events][2:] == ["response.failed", "error"]


@pytest.mark.parametrize("streamed", [True, False])
async def test_leaving_aborts_the_generation(make_gateway: Callable[..., Any], streamed: bool) -> None:
    engine = ScriptedEngine(Reply("Hello world", chunk=1, hang_after=4))
    async with make_gateway(engine) as gateway:
        asking = asyncio.create_task(ask(gateway, stream=streamed))
        await eventually(lambda: engine.running == 1)
        asking.cancel()
        await eventually(lambda: engine.aborted == 1)
    assert engine.running == 0


async def test_silence_is_filled_with_events_that_say_nothing(make_gateway: Callable[..., Any]) -> None:
    pace = {"stream_start_timeout": 0.05, "sse_comment_interval": 0.02, "sse_chunk_interval": 0.04}
    for reply in (
        Reply("Hello world", chunk=6, first_delay=0.2),
        Reply("Hello world", chunk=6, delay=0.15),
        Reply(ANSWERS["call"], chunk=50, delay=0.15),
        Reply(ANSWERS["thought"], chunk=10, delay=0.15),
    ):
        async with make_gateway(reply, **pace) as gateway:
            events = await stream(gateway, tools=TOOLS)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        spoken = [event for event in events if not repeated(event, events)]
        final = check_stream([{**event, "sequence_number": number} for number, event in enumerate(spoken)])
        assert final["status"] == "completed"
        empty = [event for event in events if event.get("delta") == "" or repeated(event, events)]
        assert empty or reply.first_delay


def repeated(event: Any, events: list[Any]) -> bool:
    return event["type"] == "response.in_progress" and event is not events[1]


def test_idle_before_anything_opens_the_response() -> None:
    events = ResponseEvents(ResponseStyle({"id": "resp_x", "output": []}))
    first, second = (named_events(events.idle().decode()) for _ in range(2))
    assert [event["type"] for event in first] == ["response.created", "response.in_progress"]
    assert [event["type"] for event in second] == ["response.in_progress"]
    assert second[0]["sequence_number"] == 2


async def test_logprobs_belong_to_the_text(make_gateway: Callable[..., Any]) -> None:
    async with make_gateway(Reply("<think>\nHm.\n</think>\n\nYes.", chunk=1)) as gateway:
        events = await stream(gateway, include=["message.output_text.logprobs"], top_logprobs=2)
        final = check_stream(events)
        plainly = check_stream(await stream(gateway))
    part = final["output"][-1]["content"][0]
    assert "".join(item["token"] for item in part["logprobs"]).endswith("Yes.")
    assert all(len(item["top_logprobs"]) == 2 for item in part["logprobs"])
    told = [item for event in events if event["type"] == "response.output_text.delta" for item in event["logprobs"]]
    assert told == part["logprobs"]
    assert plainly["output"][-1]["content"][0]["logprobs"] == []


async def test_a_fold_without_an_end_is_no_answer(make_gateway: Callable[..., Any]) -> None:
    class Silent(ScriptedEngine):
        async def generate(self, request: Any) -> AsyncGenerator[Any, None]:
            return
            yield

    async with make_gateway(Silent()) as gateway:
        assert (await ask(gateway)).status_code == 500
        assert (await ask(gateway, stream=True)).status_code == 500
    assert BlockFold().whole == []
