"""Gateways for cases that need a server: over real hash-lm processes, over a scripted model, or somebody's own.

hash-lm writes at random but obeys grammars, so what a grammar promises holds for it or is broken in plain sight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import httpx
import msgspec

from chat_templates.registry import get_template
from engine.config import EngineConfig
from engine.launch import Engine
from engine.text.byte_tokenizer import EOS_ID, ByteTokenizer
from server.app import build_app
from server.args import ServerArgs
from tests.fakes import MODEL_INFO, Script, ScriptedEngine
from toolcall.registry import get_format

T = TypeVar("T")
TIMEOUT = 120.0
TEMPLATES = {"any": "qwen2.5", "hermes": "qwen3"}
_QUOTE = str(ord('"'))
WRITE_CALL = {str(ByteTokenizer().special_tokens["<tool_call>"]): 48, _QUOTE: 8}
"""A logit_bias with which hash-lm soon opens a hermes call, and writes the marker into strings too."""
COME_TO_AN_END = {str(EOS_ID): 60, _QUOTE: 6, str(ord("\n")): 38, str(ord("`")): 3}
"""A logit_bias with which hash-lm closes strings and ends where its grammar lets it."""


@dataclass
class Call:
    id: str = ""
    type: str = ""
    name: str = ""
    arguments: Any = ""

    def parsed(self) -> Any:
        try:
            return json.loads(self.arguments)
        except (TypeError, ValueError):
            return None


@dataclass
class Answer:
    """One choice as a client reads it, streamed or not. ``message``: the message object, ``chunks``: the stream."""

    status: int
    body: Any = None
    seconds: float = 0.0
    content: str | None = None
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    finish: str | None = None
    message: Mapping[str, Any] = field(default_factory=dict)
    chunks: Sequence[Any] = ()

    @property
    def error(self) -> Mapping[str, Any]:
        found = self.body.get("error") if isinstance(self.body, dict) else None
        return found if isinstance(found, dict) else {}

    @property
    def relaxed(self) -> Sequence[str]:
        """What the server says that it does not enforce."""
        said = [self.body, *self.chunks]
        return [note for part in said if isinstance(part, dict) for note in _relaxed(part)]


def _relaxed(part: Mapping[str, Any]) -> Sequence[str]:
    return (part.get("callgate") or {}).get("relaxed_schemas") or ()


class LoopThread:
    """An event loop that never stands still, so that supervised processes are not taken for frozen."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10 * TIMEOUT)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


class Gateway:
    """One application, or one URL, to ask. ``engine``: the scripted engine behind it, None for others."""

    def __init__(self, loop: LoopThread, client: httpx.AsyncClient, app: Any, engine: ScriptedEngine | None) -> None:
        self._loop = loop
        self._client = client
        self._app = app
        self.engine = engine

    def ask(self, body: Mapping[str, Any], path: str = "/v1/chat/completions") -> Answer:
        start = time.monotonic()
        response = self._loop.run(self._client.post(path, content=json.dumps(body).encode()))
        seconds = time.monotonic() - start
        if "text/event-stream" in response.headers.get("content-type", ""):
            return replace(_streamed(response.text), status=response.status_code, seconds=seconds)
        return replace(_whole(response), seconds=seconds)

    def close(self) -> None:
        async def end() -> None:
            await self._client.aclose()
            if self._app is not None:
                await self._app.state.services.planner.close()

        self._loop.run(end())


class Gateways:
    """Starts what is asked for, when it is asked for. Close it."""

    def __init__(self, base_url: str = "", api_key: str = "") -> None:
        self._base_url = base_url
        self._key = api_key
        self._loop = LoopThread()
        self._engine: Engine | None = None
        self._model = ""
        self._gateways: dict[str, Gateway] = {}

    @property
    def own(self) -> bool:
        """The models behind are ours, so that their ways are known."""
        return not self._base_url

    def real(self, format_name: str) -> Gateway:
        """A model that obeys grammars, spoken to in this format. KeyError or ValueError for an unknown format."""
        name = format_name if self.own else ""
        if name not in self._gateways:
            self._gateways[name] = self._our_own(name) if self.own else self._theirs()
        return self._gateways[name]

    def scripted(self, script: Script, format_name: str = "hermes") -> Gateway:
        """A model that writes what it is told, whatever the grammar. Close the gateway."""
        engine = ScriptedEngine(script, model_info=_roomy())
        return self._gateway(engine, _arguments(format_name, reasoning="auto"), engine)

    def close(self) -> None:
        for gateway in self._gateways.values():
            gateway.close()
        if self._engine is not None:
            self._loop.run(self._engine.stop())
        self._loop.close()

    def _our_own(self, format_name: str) -> Gateway:
        if self._engine is None:
            config = EngineConfig(model="hash-lm", kv_pages=20_000, max_model_len=250_000, max_running_requests=16)
            self._engine = Engine(config)
            self._loop.run(self._engine.start())
        return self._gateway(self._engine, _arguments(format_name, reasoning="none"), None)

    def _gateway(self, engine: Any, args: ServerArgs, scripted: ScriptedEngine | None) -> Gateway:
        app = build_app(engine, args)
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1234), raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=TIMEOUT)
        return Gateway(self._loop, client, app, scripted)

    def _theirs(self) -> Gateway:
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        client = httpx.AsyncClient(base_url=self._base_url.removesuffix("/v1"), headers=headers, timeout=TIMEOUT)
        return Gateway(self._loop, client, None, None)


def _arguments(format_name: str, *, reasoning: str) -> ServerArgs:
    """Raises ValueError for a format that is not known; one without a template of its own gets a plain one."""
    parser = get_format("hermes" if format_name == "any" else format_name).name
    template = TEMPLATES.get(format_name, format_name)
    try:
        get_template(template)
    except KeyError:
        template = "chatml"
    return ServerArgs(chat_template=template, tool_call_parser=parser, reasoning_parser=reasoning)


def _roomy() -> Any:
    return msgspec.structs.replace(MODEL_INFO, context_length=1 << 20)


def _whole(response: httpx.Response) -> Answer:
    body: Any = None
    with contextlib.suppress(ValueError):
        body = response.json()
    answer = Answer(response.status_code, body)
    choices = body.get("choices") if isinstance(body, dict) else None
    if response.status_code == 200 and choices:
        message = choices[0]["message"]
        answer.message, answer.finish = message, choices[0]["finish_reason"]
        answer.content = message.get("content")
        answer.reasoning = message.get("reasoning_content") or ""
        answer.calls = [
            Call(call["id"], call["type"], call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or ()
        ]
    return answer


def _streamed(text: str) -> Answer:
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    chunks = [json.loads(line) for line in lines if line != "[DONE]"]
    answer = Answer(200, chunks=chunks)
    by_index: dict[int, Call] = {}
    for chunk in chunks:
        if "error" in chunk:
            answer.body = chunk
        for choice in chunk.get("choices") or ():
            delta = choice["delta"]
            if delta.get("content"):
                answer.content = (answer.content or "") + delta["content"]
            answer.reasoning += delta.get("reasoning_content") or ""
            answer.finish = choice["finish_reason"] or answer.finish
            for part in delta.get("tool_calls") or ():
                _extend(by_index.setdefault(part["index"], Call()), part)
    answer.calls = [by_index[index] for index in sorted(by_index)]
    return answer


def _extend(call: Call, part: Mapping[str, Any]) -> None:
    function = part.get("function") or {}
    call.id = part.get("id") or call.id
    call.type = part.get("type") or call.type
    call.name += function.get("name") or ""
    call.arguments += function.get("arguments") or ""
