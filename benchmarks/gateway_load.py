"""What the gateway costs under load, over sockets, beside another gateway: streamed tokens per CPU second and latency.

    python -m benchmarks.gateway_load                                     # ours, with a scripted engine in its process
    python -m benchmarks.gateway_load --upstream 9000                     # an OpenAI stub that answers at once ...
    python -m benchmarks.gateway_load --url http://127.0.0.1:4000 --pid N # ... behind a peer: measure that process

Every stream asks for the same answer of --tokens words, a token each. CPU time is that of the gateway's process and its
children, user and system; clients and stub are other processes. With --interval a token comes every so many seconds,
else all at once. Latency is from opening the connection to the first token, less the interval that the upstream waits.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import urlsplit

import orjson
import uvicorn
import uvloop

from benchmarks.load import post
from benchmarks.serving.machine import cpu_seconds
from engine.messages import FinishReason, GenerateOutput, GenerateReqInput
from server.app import build_app
from server.args import ServerArgs
from server.http_protocol import uvicorn_config
from tests.fakes import ScriptedEngine

MODEL = "scripted"
LEVELS = (1, 64, 512)


@dataclass(frozen=True)
class Script:
    """An answer: how many deltas, and the seconds between two of them."""

    tokens: int
    interval: float


class PacedEngine(ScriptedEngine):
    """Answers every request with the script's deltas."""

    plan: Script

    async def generate(self, request: GenerateReqInput) -> AsyncGenerator[GenerateOutput, None]:
        for number in range(1, self.plan.tokens + 1):
            if self.plan.interval:
                await asyncio.sleep(self.plan.interval)
            yield GenerateOutput(
                index=0, text=f" word{number % 10}", token_ids=(1,), prompt_tokens=10, completion_tokens=number
            )
        end = FinishReason(type="stop")
        yield GenerateOutput(index=0, finish_reason=end, prompt_tokens=10, completion_tokens=self.plan.tokens)


def serve_gateway(port: int, script: Script) -> None:
    engine, args = PacedEngine(), ServerArgs(served_model_names=(MODEL,))
    engine.plan = script
    config = uvicorn_config(build_app(engine, args), args)
    config.host, config.port = "127.0.0.1", port
    uvicorn.Server(config).run()


async def serve_upstream(port: int, script: Script) -> None:
    """The same answer as server-sent events, for a gateway that needs an upstream."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    frame = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": MODEL}

    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
        return b"data: " + orjson.dumps({**frame, "choices": choices}) + b"\n\n"

    # Words differ because some gateways end a model that repeats itself.
    words = [event({"content": f" word{number % 10}"}) for number in range(1, script.tokens + 1)]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        for line in request.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                await reader.readexactly(int(line.split(b":")[1]))
        writer.write(head + event({"role": "assistant", "content": ""}))
        for word in words:
            if script.interval:
                await asyncio.sleep(script.interval)
            writer.write(word)
        writer.write(event({}, "stop") + b"data: [DONE]\n\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


@dataclass(frozen=True)
class Timing:
    """Of one stream: its tokens (words), the events that carried them, seconds to the first of them."""

    tokens: int
    events: int
    first: float


async def stream(url: str) -> Timing:
    """One streamed request. Raises RuntimeError where the answer is not a whole stream."""
    parts = urlsplit(url)
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    request = post("/v1/chat/completions", fields, "authorization: Bearer sk-none", "connection: close")
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(request)
    received, first = bytearray(), 0.0
    while data := await reader.read(65536):
        received += data
        if not first and b" word" in received:
            first = time.perf_counter() - begun
    writer.close()
    if b"[DONE]" not in received:
        raise RuntimeError(bytes(received[:500]).decode("utf-8", "replace"))
    return Timing(received.count(b" word"), received.count(b'" word'), first)


async def measure(url: str, pid: int, script: Script, levels: tuple[int, ...]) -> None:
    await asyncio.gather(*(stream(url) for _ in range(4)))
    for level in levels:
        rounds = max(1, (4 if script.interval else 64) // level)
        cpu, begun = cpu_seconds(pid), time.perf_counter()
        timings: list[Timing] = []
        for _ in range(rounds):
            timings += await asyncio.gather(*(stream(url) for _ in range(level)))
        wall, cpu = time.perf_counter() - begun, cpu_seconds(pid) - cpu
        tokens = sum(timing.tokens for timing in timings)
        if tokens != script.tokens * len(timings):
            raise RuntimeError(f"{tokens} tokens arrived of {script.tokens * len(timings)}")
        events = sum(timing.events for timing in timings)
        first = sorted(timing.first - script.interval for timing in timings)
        p50, p99 = (first[int(len(first) * part)] * 1000 for part in (0.5, 0.99))
        print(
            f"{level:4} streams: per CPU second {tokens / cpu:9,.0f} tokens, {len(timings) / cpu:6,.1f} requests; "
            f"{tokens / wall:8,.0f} tokens/s, {tokens / events:.1f} an event; "
            f"first after {p50:,.1f} ms, p99 {p99:,.1f} ms",
            flush=True,
        )


async def ready(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            await stream(url)
            return
        except (OSError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.2)


async def run(url: str, pid: int, script: Script, levels: tuple[int, ...]) -> None:
    await ready(url)
    await measure(url, pid, script, levels)


def run_ours(port: int, script: Script, levels: tuple[int, ...]) -> None:
    command = [sys.executable, "-m", "benchmarks.gateway_load", "--serve", str(port)]
    shape = ["--tokens", str(script.tokens), "--interval", str(script.interval)]
    with subprocess.Popen([*command, *shape], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            uvloop.run(run(f"http://127.0.0.1:{port}", process.pid, script, levels))
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--interval", type=float, default=0.0)
    parser.add_argument("--streams", type=int, nargs="+", default=LEVELS)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--url", help="measure this gateway instead of ours")
    parser.add_argument("--pid", type=int, help="its process")
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the gateway that is measured")
    parser.add_argument("--upstream", type=int, metavar="PORT", help="be the stub behind a peer")
    options = parser.parse_args()
    script = Script(options.tokens, options.interval)
    if options.serve:
        serve_gateway(options.serve, script)
    elif options.upstream:
        uvloop.run(serve_upstream(options.upstream, script))
    elif options.url:
        uvloop.run(run(options.url, options.pid, script, tuple(options.streams)))
    else:
        run_ours(options.port, script, tuple(options.streams))


if __name__ == "__main__":
    main()
