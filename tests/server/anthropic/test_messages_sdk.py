"""Anthropic's own SDK against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from engine.client import EngineError, EngineUnavailable
from server.app import build_app
from server.args import Secret, ServerArgs
from server.constrainer import Constrainer
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.server.conftest import FakeChecker

KEY = "sk-user-0123456789"
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
)
SCRIPT: dict[str, Any] = {
    "<|im_start|>tool\n5": Reply("Sunny, and 2 + 3 = 5.", chunk=2),
    "dies": Reply("Hello world", chunk=2, fail_after=3),
    "overloaded": Reply(error=EngineUnavailable("The queue is full.", retry_after=2.0)),
    "too many": Reply(error=EngineError("Too many requests.", status=429)),
    "broken": Reply(error=RuntimeError("boom")),
    "ponder": Reply("<think>\nLet me see.\n</think>\n\nYes.", chunk=3),
    "report": Reply('{"city": "Paris", "degrees": 21}', chunk=3),
    "get_weather": Reply(f"Two calls.\n{CALLS}", chunk=3),
    "": Reply("Hello!", chunk=1),
}
TOOLS: list[Any] = [
    {"name": "get_weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}}},
]
RESULTS = {"get_weather": "sunny", "add": "5"}


class Report(BaseModel):
    city: str
    degrees: int


@pytest.fixture(scope="module")
def client() -> Iterator[anthropic.Anthropic]:
    args = ServerArgs(api_keys=(Secret(KEY),), max_body_bytes=100_000)
    app = build_app(ScriptedEngine(SCRIPT), args, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    with live(app, args) as url, anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0) as client:
        yield client


def ask(client: anthropic.Anthropic, text: str = "hi", **fields: Any) -> Any:
    model = fields.pop("model", "test-model")
    return client.messages.create(model=model, max_tokens=500, messages=[{"role": "user", "content": text}], **fields)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_loop(client: anthropic.Anthropic, streamed: bool) -> None:
    messages: list[Any] = [{"role": "user", "content": "Weather, and 2 + 3?"}]

    def turn() -> Any:
        fields: Any = {"model": "test-model", "max_tokens": 500, "tools": TOOLS, "messages": messages}
        if not streamed:
            return client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            return stream.get_final_message()

    first = turn()
    assert first.stop_reason == "tool_use"
    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert [block.input for block in first.content[1:]] == [{"city": "Paris"}, {"a": 2, "b": 3}]
    messages.append({"role": "assistant", "content": first.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": RESULTS[block.name]} for block in first.content[1:]
    ]
    messages.append({"role": "user", "content": results})
    last = turn()
    assert (last.content[0].text, last.stop_reason) == ("Sunny, and 2 + 3 = 5.", "end_turn")
    assert last._request_id if not streamed else True


@pytest.mark.parametrize("streamed", [False, True])
def test_the_tool_runner_sends_the_whole_conversation(client: anthropic.Anthropic, streamed: bool) -> None:
    """It asks for a thread, which is refused; by the code of the refusal it goes on without one."""
    ran: list[Any] = []

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather."""
        ran.append(city)
        return "sunny"

    @anthropic.beta_tool
    def add(a: int, b: int) -> str:
        """A sum."""
        ran.append((a, b))
        return str(a + b)

    runner: Any = client.beta.messages.tool_runner(
        model="test-model",
        max_tokens=500,
        messages=[{"role": "user", "content": "Weather, and 2 + 3?"}],
        tools=[get_weather, add],
        stream=streamed,
    )
    reasons = [(turn.get_final_message() if streamed else turn).stop_reason for turn in runner]
    assert reasons == ["tool_use", "end_turn"]
    assert ran == ["Paris", (2, 3)]


def test_a_thread_of_ones_own_is_refused_by_name(client: anthropic.Anthropic) -> None:
    thread = client.beta.messages.thread(model="test-model", max_tokens=500)
    with pytest.raises(anthropic.BadRequestError, match="thread") as raised:
        thread.send({"role": "user", "content": "hi"})
    assert raised.value.error_code == "thread_unsupported_request"


def test_thinking(client: anthropic.Anthropic) -> None:
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    whole = ask(client, "ponder", thinking=thinking)
    assert [block.type for block in whole.content] == ["thinking", "text"]
    with client.messages.stream(
        model="test-model", max_tokens=500, thinking=thinking, messages=[{"role": "user", "content": "ponder"}]
    ) as stream:
        kinds = {event.type for event in stream}
        final: Any = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds
    assert final.content[0] == whole.content[0]
    assert final.content[1].text == whole.content[1].text == "Yes."
    follow: list[Any] = [{"role": "user", "content": "ponder"}, {"role": "assistant", "content": final.content}]
    follow.append({"role": "user", "content": "sure?"})
    assert client.messages.create(model="test-model", max_tokens=50, messages=follow).content


def test_structured_output(client: anthropic.Anthropic) -> None:
    parsed = client.messages.parse(
        model="test-model", max_tokens=500, messages=[{"role": "user", "content": "report"}], output_format=Report
    )
    assert parsed.parsed_output == Report(city="Paris", degrees=21)


def test_counts_and_models(client: anthropic.Anthropic) -> None:
    count = client.messages.count_tokens(model="test-model", messages=[{"role": "user", "content": "hi"}])
    assert count.input_tokens == ask(client).usage.input_tokens
    listed = list(client.models.list())
    assert [model.id for model in listed] == ["test-model"]
    assert client.models.retrieve("test-model") == listed[0]


def test_a_failure_in_the_stream_raises(client: anthropic.Anthropic) -> None:
    stream = ask(client, "dies", stream=True)
    with pytest.raises(anthropic.APIStatusError, match="died"):
        list(stream)
    with (
        client.messages.stream(
            model="test-model", max_tokens=500, messages=[{"role": "user", "content": "dies"}]
        ) as helper,
        pytest.raises(anthropic.APIStatusError, match="died"),
    ):
        helper.get_final_message()


@pytest.mark.parametrize(
    ("call", "kind", "error_type"),
    [
        (lambda c: ask(c, extra_body={"temperature": 5}), anthropic.BadRequestError, "invalid_request_error"),
        (lambda c: ask(c, "word " * 5000), anthropic.BadRequestError, "invalid_request_error"),
        (lambda c: ask(c, extra_body={"thread": {"type": "create"}}), anthropic.BadRequestError, "invalid_request_error"),
        (lambda c: ask(c.with_options(api_key="sk-wrong")), anthropic.AuthenticationError, "authentication_error"),
        (lambda c: ask(c, model="claude-x"), anthropic.NotFoundError, "not_found_error"),
        (lambda c: ask(c, "x" * 200_000), anthropic.APIStatusError, "request_too_large"),
        (lambda c: ask(c, "too many"), anthropic.RateLimitError, "rate_limit_error"),
        (lambda c: ask(c, "broken"), anthropic.InternalServerError, "api_error"),
        (lambda c: ask(c, "overloaded"), anthropic.APIStatusError, "overloaded_error"),
    ],
)  # fmt: skip
def test_errors_raise_their_classes(client: anthropic.Anthropic, call: Any, kind: Any, error_type: str) -> None:
    with pytest.raises(kind) as raised:
        call(client)
    body: Any = raised.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == error_type
    assert body["error"]["message"]
    assert raised.value.request_id == body["request_id"]


def test_a_bearer_token_opens_it_too(client: anthropic.Anthropic) -> None:
    with anthropic.Anthropic(base_url=str(client.base_url), auth_token=KEY, api_key=None, max_retries=0) as other:
        assert ask(other).content[0].text == "Hello!"
