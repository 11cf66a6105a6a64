"""``callgate chat`` against a gateway: streams text, runs the tools that are called, goes on."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator

import httpx
import pytest
from starlette.testclient import TestClient

from server.app import build_app
from server.args import ServerArgs
from server.commands.chat import Chat, ChatError, base_url
from tests.fakes import Reply, ScriptedEngine

CALL = '<tool_call>\n{"name": "calculate", "arguments": {"a": 6, "operation": "multiply", "b": 7}}\n</tool_call>'


@pytest.fixture
def make_chat() -> Iterator[Callable[[ScriptedEngine], Chat]]:
    with contextlib.ExitStack() as stack:

        def make(engine: ScriptedEngine) -> Chat:
            app = build_app(engine, ServerArgs())
            return Chat(stack.enter_context(TestClient(app, base_url="http://localhost")), "test-model")

        yield make


def test_a_tool_is_called_and_its_result_sent_back(make_chat, capsys: pytest.CaptureFixture[str]) -> None:
    engine = ScriptedEngine(
        lambda request, index: "It is 42." if "42.0" in (request.text or "") else Reply(CALL, chunk=3)
    )
    chat = make_chat(engine)
    chat.ask("6 times 7?")
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[2]["content"] == "42.0"
    assert chat.messages[2]["tool_call_id"] == chat.messages[1]["tool_calls"][0]["id"]
    assert "It is 42." in capsys.readouterr().out


def test_a_model_that_repeats_a_call_gets_no_more_tools(make_chat) -> None:
    engine = ScriptedEngine(
        lambda request, index: CALL if "operation" in (request.text or "").split("<|im_end|>")[0] else "42"
    )
    chat = make_chat(engine)
    chat.ask("again")
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[-1]["content"] == "42"


def test_a_model_that_only_calls_tools_comes_to_an_end(make_chat, capsys: pytest.CaptureFixture[str]) -> None:
    numbers = itertools.count()
    make_chat(ScriptedEngine(lambda request, index: CALL.replace("6", str(next(numbers))))).ask("again")
    assert "too many tool calls" in capsys.readouterr().out


def test_an_error_of_the_server_is_said(make_chat) -> None:
    chat = make_chat(ScriptedEngine())
    chat.model = "other"
    with pytest.raises(ChatError, match="404"):
        chat.ask("hi")
    with pytest.raises(ChatError, match="died"):
        make_chat(ScriptedEngine(Reply("Hello you", chunk=1, fail_after=3))).ask("hi")


def test_no_server_is_a_clear_error() -> None:
    with httpx.Client(base_url="http://127.0.0.1:9") as client, pytest.raises(httpx.ConnectError):
        Chat(client, "m").ask("hi")


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_banners_url_is_taken_as_it_is(end: str) -> None:
    assert base_url(f"http://127.0.0.1:8461{end}") == "http://127.0.0.1:8461"
    assert base_url(f"http://host/prefix{end}") == "http://host/prefix"
