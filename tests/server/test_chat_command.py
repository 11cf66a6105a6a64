"""``callgate chat`` against a gateway: streams text, runs the tools that are called, goes on."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import threading
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from server.app import build_app
from server.args import ServerArgs
from server.cli import make_parser
from server.commands import chat
from server.commands.chat import Chat, ChatError, base_url, make_client
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


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9", "http://localhost:9/v1", "127.0.0.1:9", "http://127.0.0.1:x", "http://["]
)
def test_no_server_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat.run(make_parser().parse_args(["chat", "--url", url])) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9", "ftp://127.0.0.1:9", "http://127.0.0.1:x"]
)
def test_a_server_on_this_machine_is_asked_without_a_proxy(proxy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    handler = type("Ready", (http.server.BaseHTTPRequestHandler,), {"do_GET": lambda self: self.send_error(200)})
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        assert chat._is_ready(f"http://127.0.0.1:{server.server_port}")
        asked.join()
        asked = threading.Thread(target=server.handle_request)
        asked.start()
        with make_client(f"http://127.0.0.1:{server.server_port}", "") as client:
            assert client.get("/v1/models").status_code == 200
        asked.join()
    if proxy != "http://127.0.0.1:9":
        with pytest.raises(ChatError):
            make_client("http://elsewhere.invalid", "")


def test_a_key_that_no_header_can_carry_is_one_line() -> None:
    with pytest.raises(ChatError):
        make_client("http://127.0.0.1:9", "clé\n")


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_the_banners_url_is_taken_as_it_is(end: str) -> None:
    assert base_url(f"http://127.0.0.1:8461{end}") == "http://127.0.0.1:8461"
    assert base_url(f"http://host/prefix{end}") == "http://host/prefix"
