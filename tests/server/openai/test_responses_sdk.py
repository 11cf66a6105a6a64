"""The openai SDK's Responses helpers against a real server: they are strict about the order of events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.server.conftest import FakeChecker

CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
)
PATCH_TEXT = '*** Begin\n+"é"\n'
PATCH = f"<tool_call>\n{json.dumps({'name': 'patch', 'arguments': {'input': PATCH_TEXT}})}\n</tool_call>"
SCRIPT: dict[str, Any] = {
    "<|im_start|>tool\n5": Reply("Sunny, and 2 + 3 = 5.", chunk=2),
    "<|im_start|>tool\npatched": Reply("Done.", chunk=2),
    "patch": Reply(f"<think>\nOne line.\n</think>\n\n{PATCH}", chunk=3),
    "dies": Reply("Hello world", chunk=2, fail_after=3),
    "get_weather": Reply(f"<think>\nTwo calls.\n</think>\n\n{CALLS}", chunk=3),
    "report": Reply('{"city": "Paris", "degrees": 21}', chunk=3),
    "": Reply("Hello!", chunk=1),
}


class Report(BaseModel):
    city: str
    degrees: int


class Add(BaseModel):
    a: int
    b: int


class GetWeather(BaseModel):
    city: str


TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "strict": True, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}},
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}},
]  # fmt: skip
ANSWERS = {"get_weather": "sunny", "add": "5"}


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    args = ServerArgs()
    app = build_app(ScriptedEngine(SCRIPT), args, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    with live(app, args) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": item.call_id, "output": ANSWERS[item.name]}
        for item in response.output
        if item.type == "function_call"
    ]


def test_a_tool_loop_that_sends_the_items_back(client: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "Weather, and 2 + 3?"}]
    first = client.responses.create(model="test-model", input=items, tools=TOOLS)
    assert [item.type for item in first.output] == ["reasoning", "function_call", "function_call"]
    items += first.output
    items += outputs(first)
    second = client.responses.create(model="test-model", input=items, tools=TOOLS)
    assert second.output_text == "Sunny, and 2 + 3 = 5."


def test_a_tool_loop_with_the_stream_helper_and_stored_responses(client: openai.OpenAI) -> None:
    with client.responses.stream(model="test-model", input="Weather, and 2 + 3?", tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds.count("response.reasoning_text.delta") > 1
    assert kinds.count("response.function_call_arguments.done") == 2
    calls = [item for item in first.output if item.type == "function_call"]
    assert [json.loads(call.arguments) for call in calls] == [{"city": "Paris"}, {"a": 2, "b": 3}]
    with client.responses.stream(
        model="test-model", input=outputs(first), tools=TOOLS, previous_response_id=first.id
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        second = stream.get_final_response()
    assert text == second.output_text == "Sunny, and 2 + 3 = 5."
    assert client.responses.retrieve(second.id).output_text == text
    items = client.responses.input_items.list(second.id)
    assert [item.type for item in items] == ["function_call_output"] * 2
    client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(second.id)


def test_parsed_output(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model="test-model", input="report", text_format=Report)
    assert parsed.output_parsed == Report(city="Paris", degrees=21)
    with client.responses.stream(model="test-model", input="report", text_format=Report) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_parsed == Report(city="Paris", degrees=21)


def test_parsed_arguments(client: openai.OpenAI) -> None:
    tools = [
        openai.pydantic_function_tool(GetWeather, name="get_weather"),
        openai.pydantic_function_tool(Add, name="add"),
    ]
    flat: list[Any] = [{"type": "function", **tool["function"]} for tool in tools]
    parsed = client.responses.parse(model="test-model", input="Weather?", tools=flat)
    calls: list[Any] = [item for item in parsed.output if item.type == "function_call"]
    assert [call.parsed_arguments for call in calls] == [{"city": "Paris"}, {"a": 2, "b": 3}]


def test_a_failure_in_the_stream_raises(client: openai.OpenAI) -> None:
    seen: list[str] = []

    def read(events: Any) -> None:
        for event in events:
            seen.append(event.type)

    events = client.responses.create(model="test-model", input="dies", stream=True)
    with pytest.raises(openai.APIError, match="The engine process died"):
        read(events)
    assert seen[-1] == "response.failed"
    with client.responses.stream(model="test-model", input="dies") as stream, pytest.raises(openai.APIError):
        read(stream)


def test_errors_raise_their_classes(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="nope", input="hi")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="test-model", input="word " * 5000)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="test-model", input="hi", previous_response_id="resp_1")
    assert refused.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model="test-model", input="hi", background=True, store=False)
    assert refused.value.param == "background"
    with pytest.raises(openai.NotFoundError):
        client.responses.cancel("resp_1")


def test_input_tokens(client: openai.OpenAI) -> None:
    count = client.responses.input_tokens.count(model="test-model", input="hi")
    used = client.responses.create(model="test-model", input="hi").usage
    assert used is not None
    assert count.input_tokens == used.input_tokens


def test_custom_tools_and_summaries_go_around_a_loop(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "custom", "name": "patch", "description": "Changes a file."}]
    items: list[Any] = [{"role": "user", "content": "Change it."}]
    with client.responses.stream(
        model="test-model", input=items, tools=tools, reasoning={"summary": "auto"}
    ) as streamed:
        events = list(streamed)
        first = streamed.get_final_response()
    thought, call = first.output
    assert thought.type == "reasoning"
    assert [part.text for part in thought.summary] == ["One line."]
    assert call.type == "custom_tool_call"
    assert (call.name, call.input) == ("patch", PATCH_TEXT)
    pieces = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    assert "".join(pieces) == PATCH_TEXT
    items += [item.model_dump() for item in first.output]
    items += [{"type": "custom_tool_call_output", "call_id": call.call_id, "output": "patched"}]
    assert client.responses.create(model="test-model", input=items, tools=tools).output_text == "Done."


def test_custom_tools_go_around_a_loop_of_chat(client: openai.OpenAI) -> None:
    tools: list[Any] = [{"type": "custom", "custom": {"name": "patch", "description": "Changes a file."}}]
    messages: list[Any] = [{"role": "user", "content": "Change it."}]
    message = client.chat.completions.create(model="test-model", messages=messages, tools=tools).choices[0].message
    assert message.tool_calls is not None
    call = message.tool_calls[0]
    assert call.type == "custom"
    assert call.custom.input == PATCH_TEXT
    messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "patched"}]
    answer = client.chat.completions.create(model="test-model", messages=messages, tools=tools)
    assert answer.choices[0].message.content == "Done."
