"""What a request needed is given back, at once."""

from __future__ import annotations

import asyncio
import gc
import platform
import subprocess
import sys
import weakref
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import pytest

from engine.client import EngineError
from engine.messages import FinishReason, GenerateOutput, GenerateReqInput
from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from tests.fakes import ScriptedEngine
from tests.server.conftest import FakeChecker

TOLD = """
import sys, psutil
from server.memory import return_large_blocks
if sys.argv[1] == "told":
    return_large_blocks()
rss = psutil.Process().memory_info().rss
small = []
for _ in range(3):
    block = bytearray(20 << 20)  # when the first one goes, the allocator learns to keep the next
    block[::4096] = bytes(len(block[::4096]))
    small.append(bytes(100_000))  # lies behind the block, and stays
    del block
print((psutil.Process().memory_info().rss - rss) >> 20)
"""


def growth(how: str) -> int:
    """MB that a process is larger after blocks of many MB."""
    done = subprocess.run([sys.executable, "-c", TOLD, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an allocator of its own kind")
def test_large_blocks_are_given_back() -> None:
    assert growth("told") <= 2
    assert growth("not") >= 8, "this test no longer tests anything"


class Prompt(list[int]):
    """A large prompt's ids, of which it can be seen when they are gone."""


class FailingEngine(ScriptedEngine):
    """Fails while it holds the request's ids: at once, or after ``deltas``."""

    deltas = 0
    held: list[weakref.ref[Prompt]]

    async def generate(self, request: GenerateReqInput) -> AsyncGenerator[GenerateOutput, None]:
        ids = Prompt(range(1000))
        self.held.append(weakref.ref(ids))
        for number in range(1, self.deltas + 1):
            yield GenerateOutput(index=0, text="x", token_ids=(1,), prompt_tokens=9, completion_tokens=number)
        if self.deltas == 2:
            end = FinishReason(type="error", message="no", status=500)
            yield GenerateOutput(index=0, finish_reason=end, prompt_tokens=len(ids))
        raise EngineError("It does not fit.", status=400, param="messages")


CHAT = {"messages": [{"role": "user", "content": "hi"}]}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", CHAT),
    "streamed chat": ("/v1/chat/completions", {**CHAT, "stream": True}),
    "completion": ("/v1/completions", {"prompt": "hi"}),
    "completions": ("/v1/completions", {"prompt": ["hi", "you"]}),
    "streamed completion": ("/v1/completions", {"prompt": "hi", "stream": True}),
    "streamed completions": ("/v1/completions", {"prompt": ["hi", "you"], "stream": True}),
    "message": ("/v1/messages", {**CHAT, "max_tokens": 4}),
    "streamed message": ("/v1/messages", {**CHAT, "max_tokens": 4, "stream": True}),
    "response": ("/v1/responses", {"input": "hi"}),
    "streamed response": ("/v1/responses", {"input": "hi", "stream": True}),
    "text": ("/generate", {"text": "hi"}),
    "texts": ("/generate", {"text": ["hi", "you"]}),
    "streamed text": ("/generate", {"text": "hi", "stream": True}),
}


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("deltas", [0, 1, 2])
@pytest.mark.parametrize("name", REQUESTS)
async def test_a_request_that_fails_is_forgotten_without_the_garbage_collector(name: str, deltas: int) -> None:
    """No cycle of frame, task and exception keeps a prompt of many MB until some later collection."""
    engine = FailingEngine()
    engine.deltas, engine.held = deltas, []
    app = build_app(engine, ServerArgs(), constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    path, body = REQUESTS[name]
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client:
        response = await client.post(path, json=body)
        assert response.status_code in (400, 500) or b"error" in response.content
        for _ in range(20):
            await asyncio.sleep(0)
    assert engine.held
    assert not any(ref() is not None for ref in engine.held)
