"""An application around a ScriptedEngine, reached without a network."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
import pytest

from engine.grammar.interface import GrammarError
from engine.messages import GrammarSpec
from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from tests.fakes import Script, ScriptedEngine


class FakeChecker:
    """Compiles nothing: refuses what holds the word ``uncompilable``."""

    async def check(self, spec: GrammarSpec) -> None:
        if "uncompilable" in spec.source:
            raise GrammarError("uncompilable")

    async def close(self) -> None:
        return None


@dataclass
class Gateway:
    """A client and the engine behind it."""

    client: httpx.AsyncClient
    engine: ScriptedEngine
    app: Any

    async def chat(self, *messages: Any, **fields: Any) -> httpx.Response:
        body = {"model": "test-model", "messages": list(messages) or [{"role": "user", "content": "hi"}], **fields}
        return await self.client.post("/v1/chat/completions", content=orjson.dumps(body))

    async def stream(self, *messages: Any, **fields: Any) -> list[Any]:
        """The parsed events of a streamed answer; the last one is "[DONE]"."""
        response = await self.chat(*messages, stream=True, **fields)
        assert response.status_code == 200, response.text
        return events(response.text)


def events(text: str) -> list[Any]:
    """Every ``data:`` line of an SSE body, parsed."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else orjson.loads(item) for item in data]


@pytest.fixture
def make_gateway() -> Callable[..., Any]:
    """``async with make_gateway(script, **server_args) as gateway``."""

    @asynccontextmanager
    async def make(script: Script | ScriptedEngine = "Hello!", **args: Any) -> AsyncIterator[Gateway]:
        engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
        app = build_app(engine, ServerArgs(**args), constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
        transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield Gateway(client, engine, app)

    return make


@pytest.fixture
async def gateway(make_gateway: Callable[..., Any]) -> AsyncIterator[Gateway]:
    async with make_gateway() as found:
        yield found
