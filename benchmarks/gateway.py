"""What the HTTP side alone costs: a scripted engine that answers at once, driven through the ASGI interface.

    python -m benchmarks.gateway [--deltas 20000] [--requests 500]

Prints streamed deltas and whole requests per second of CPU time, with and without tools. No socket and no model:
this is the cost that the gateway adds to every token.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Any

import orjson
import uvloop

from engine.messages import FinishReason, GenerateOutput, GenerateReqInput
from server.app import build_app
from server.args import ServerArgs
from tests.fakes import ScriptedEngine

TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class InstantEngine(ScriptedEngine):
    """Yields prepared outputs without any work of its own."""

    outputs: list[GenerateOutput]

    def prepare(self, deltas: int) -> None:
        self.outputs = [
            GenerateOutput(index=0, text="word ", token_ids=(1,), prompt_tokens=10, completion_tokens=i + 1)
            for i in range(deltas)
        ]
        self.outputs.append(
            GenerateOutput(index=0, finish_reason=FinishReason(type="stop"), prompt_tokens=10, completion_tokens=deltas)
        )

    async def generate(self, request: GenerateReqInput) -> AsyncGenerator[GenerateOutput, None]:
        for output in self.outputs:
            yield output


async def ask(app: Any, body: bytes) -> int:
    """One request through the ASGI interface; the number of messages that came back."""
    count = 0
    incoming = [{"type": "http.request", "body": body, "more_body": False}]
    never = asyncio.Event()

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        await never.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal count
        count += 1

    headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/chat/completions",
        "raw_path": b"/v1/chat/completions",
        "query_string": b"",
        "headers": headers,
        "http_version": "1.1",
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
        "scheme": "http",
        "root_path": "",
    }
    await app(scope, receive, send)
    return count


async def measure(deltas: int, requests: int) -> None:
    engine = InstantEngine()
    app = build_app(engine, ServerArgs())
    for stream in (True, False):
        for tools in (None, [TOOL]):
            fields = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "tools": tools}
            body = orjson.dumps(fields)
            engine.prepare(deltas if stream else 1)
            rounds = 1 if stream else requests
            await ask(app, body)
            begun = time.process_time()
            for _ in range(rounds):
                await ask(app, body)
            seconds = time.process_time() - begun
            label = f"{'stream' if stream else 'whole'}, {'tools' if tools else 'no tools'}"
            amount, unit = (deltas, "deltas") if stream else (requests, "requests")
            print(f"{label:20} {amount / seconds:12,.0f} {unit} per CPU second")
    await app.state.services.planner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deltas", type=int, default=20_000)
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    uvloop.run(measure(options.deltas, options.requests))


if __name__ == "__main__":
    main()
