"""``callgate chat``: a terminal chat with two demo tools that really run."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import operator
import os
import socket
import subprocess
import sys
import time
import zoneinfo
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import httpx

from engine.platform.modules import import_path, module_command

DEFAULT_URL = "http://127.0.0.1:8000"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_ROUNDS = 8
"""Tool rounds per question, so that a model that only calls tools comes to an end."""

TOOLS = (
    {
        "type": "function",
        "function": {
            "name": "get_time",
            "description": "Get the current date and time in a time zone",
            "parameters": {
                "type": "object",
                "properties": {"timezone": {"type": "string", "description": "IANA name, such as Europe/Oslo"}},
                "required": ["timezone"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Calculate with two numbers",
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "number"},
                    "operation": {"type": "string", "enum": ["add", "subtract", "multiply", "divide"]},
                    "b": {"type": "number"},
                },
                "required": ["a", "operation", "b"],
            },
        },
    },
)
OPERATIONS: Mapping[str, Callable[[float, float], float]] = MappingProxyType(
    {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv}
)


class ChatError(Exception):
    """The chat cannot go on; the message is one line."""


def run(arguments: argparse.Namespace) -> int:
    try:
        with contextlib.ExitStack() as stack:
            url = arguments.url or (
                DEFAULT_URL if _is_ready(DEFAULT_URL) else stack.enter_context(_server(arguments.model))
            )
            key = arguments.api_key or os.environ.get("CALLGATE_API_KEY", "")
            client = stack.enter_context(make_client(base_url(url), key))
            _loop(Chat(client, arguments.model or _first_model(client)))
    except (httpx.ConnectError, httpx.UnsupportedProtocol) as error:
        return _fail(f"the server cannot be reached: {error} (without --url one is started)")
    except (ChatError, httpx.HTTPError) as error:
        return _fail(str(error) or type(error).__name__)
    return 0


def _fail(message: str) -> int:
    print(f"callgate chat: {message}", file=sys.stderr)
    return 1


def make_client(url: str, key: str) -> httpx.Client:
    """A client of the server at ``url``; one on this machine is asked without the proxy that the environment names.

    Raises ChatError where httpx cannot use that proxy, the address or the key.
    """
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        nearby = httpx.URL(url).host in LOOPBACK
        return httpx.Client(base_url=url, headers=headers, timeout=600, trust_env=not nearby)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ChatError(" ".join(str(error).split())) from error


def base_url(url: str) -> str:
    """The server's address from what users have at hand: the banner's URL and OpenAI's clients end in ``/v1``."""
    return url.rstrip("/").removesuffix("/v1")


def _loop(chat: Chat) -> None:
    print(f"Talking to {chat.model}. Tools: get_time, calculate. An empty line or Ctrl-D ends.")
    while True:
        try:
            text = input("\n> ").strip()
        except EOFError:
            print()
            return
        if not text:
            return
        chat.ask(text)


class Chat:
    """One conversation. ``ask`` streams the answer to stdout and runs the tools that the model calls."""

    def __init__(self, client: httpx.Client, model: str) -> None:
        self.model = model
        self.messages: list[dict[str, Any]] = []
        self._client = client

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})
        asked: list[tuple[str, str]] = []
        for _ in range(MAX_ROUNDS):
            answer = self._complete("auto")
            new = [_key(call) for call in answer.get("tool_calls", ())]
            if new and all(key in asked for key in new):
                answer = self._complete("none")  # small models repeat a call: only text is left to them then
            self.messages.append(answer)
            calls = answer.get("tool_calls", [])
            if not calls:
                return
            for call in calls:
                self._run(call)
            asked += new
        print("(stopped: too many tool calls)")

    def _run(self, call: dict[str, Any]) -> None:
        function = call["function"]
        result = run_tool(function["name"], function["arguments"])
        print(f"  [{' '.join(_key(call))} -> {result}]")
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    def _complete(self, tool_choice: str) -> dict[str, Any]:
        body = {"model": self.model, "messages": self.messages, "tools": TOOLS, "stream": True}
        body |= {"tool_choice": tool_choice, "temperature": 0}
        answer: dict[str, Any] = {"role": "assistant", "content": ""}
        calls: list[dict[str, Any]] = []
        with self._client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ChatError(_error_text(response))
            for delta in _deltas(response):
                if delta.get("content"):
                    answer["content"] += delta["content"]
                    print(delta["content"], end="", flush=True)
                for piece in delta.get("tool_calls") or ():
                    _add_piece(calls, piece)
        print()
        return answer | ({"tool_calls": calls} if calls else {})


def _key(call: dict[str, Any]) -> tuple[str, str]:
    """Name and arguments, without the spacing of the model."""
    return call["function"]["name"], " ".join(call["function"]["arguments"].split())


def _deltas(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The deltas of a stream, read to its end. Raises ChatError where it held an error event."""
    failure = ""
    for line in response.iter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            failure = chunk["error"]["message"]
        for choice in chunk.get("choices", ()):
            yield choice["delta"]
    if failure:
        raise ChatError(failure)


def _add_piece(calls: list[dict[str, Any]], piece: dict[str, Any]) -> None:
    if piece["index"] == len(calls):
        calls.append({"id": piece["id"], "type": "function", "function": {"name": "", "arguments": ""}})
    function = calls[piece["index"]]["function"]
    for key in ("name", "arguments"):
        function[key] += piece["function"].get(key) or ""


def run_tool(name: str, arguments: str) -> str:
    """The tool's answer, or what is wrong with the call: the model reads either."""
    try:
        given = json.loads(arguments or "{}")
        if name == "get_time":
            return datetime.datetime.now(zoneinfo.ZoneInfo(given["timezone"])).strftime("%Y-%m-%d %H:%M %Z")
        if name == "calculate":
            return str(OPERATIONS[given["operation"]](float(given["a"]), float(given["b"])))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OSError) as error:
        return f"error: {type(error).__name__}: {error}"
    return f"error: no tool {name!r}"


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health/ready", timeout=2, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _first_model(client: httpx.Client) -> str:
    response = client.get("/v1/models")
    if response.status_code != 200:
        raise ChatError(_error_text(response))
    name: str = response.json()["data"][0]["id"]
    return name


def _error_text(response: httpx.Response) -> str:
    try:
        return f"{response.status_code}: {response.json()['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"the server answered {response.status_code}"


@contextlib.contextmanager
def _server(model: str) -> Iterator[str]:
    """A server of our own on a free port, ended with the chat."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*module_command("server"), "serve", "--port", str(port), "--log-level", "warning"]
    command += ["--model", model] if model else []
    print("No server on port 8000: starting one.", flush=True)
    env = {**os.environ, "PYTHONPATH": import_path()}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=env)
    url = f"http://127.0.0.1:{port}"
    try:
        while not _is_ready(url):
            if process.poll() is not None:
                raise ChatError("the server did not start")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()
