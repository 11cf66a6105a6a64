"""Requests to a server of ours and what becomes of them: shared by the benchmarks that disturb or overload one."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import psutil


def hash_lm_server(port: int, *flags: str) -> AbstractContextManager[psutil.Process]:
    """``callgate serve --model hash-lm``, ready, for the length of a block."""
    return serving("hash-lm", port, *flags)


@contextmanager
def serving(model: str, port: int, *flags: str) -> Iterator[psutil.Process]:
    """``callgate serve``, ready, for the length of a block."""
    command = [sys.executable, "-m", "server", "serve", "--model", model, "--port", str(port), *flags]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_ready(port)
            yield psutil.Process(process.pid)
        finally:
            process.terminate()


def _wait_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def post(path: str, fields: Mapping[str, Any], *headers: str) -> bytes:
    """The bytes of one request."""
    body = orjson.dumps(fields)
    lines = (
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *headers,
    )
    return "\r\n".join((*lines, "", "")).encode() + body


@dataclass(slots=True)
class Answer:
    """status 0: no answer. asked, ended: moments. first, total: seconds from asking to the first token and the end."""

    status: int = 0
    first: float = 0.0
    total: float = 0.0
    whole: bool = False
    retry_after: bool = False
    asked: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Load:
    """What is asked of which server. Prompts differ, so that no prefix is shared; answers are of half to one and a
    half times max_tokens, so that the rows of a batch do not end together."""

    port: int
    prompt_tokens: int
    max_tokens: int
    model: str = "hash-lm"
    count: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(10))
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    def payload(self) -> bytes:
        self.count += 1
        text = f"{self.count:08}" + "x" * max(0, self.prompt_tokens - 8)
        length = self.rng.randint(self.max_tokens // 2, self.max_tokens * 3 // 2)
        fields = {"model": self.model, "prompt": text, "max_tokens": length, "stream": True}
        return post("/v1/completions", fields)

    async def ask(self) -> Answer:
        """One streamed request over a connection that is kept for the next one."""
        begun = time.perf_counter()
        answer = Answer(asked=begun)
        try:
            connection = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = connection
            writer.write(self.payload())
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            answer.status = int(head[9:12])
            answer.retry_after = b"\r\nretry-after:" in head
            if b"\r\ncontent-length:" in head:
                await reader.readexactly(int(head.split(b"\r\ncontent-length:")[1].split(b"\r\n")[0]))
            else:
                await self._read_events(reader, answer, begun)
        except (OSError, EOFError):
            return answer
        answer.ended = time.perf_counter()
        answer.total = answer.ended - begun
        self.idle.append(connection)
        return answer

    async def _read_events(self, reader: asyncio.StreamReader, answer: Answer, begun: float) -> None:
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            if not answer.first and b'"text":"' in data:
                answer.first = time.perf_counter() - begun
            answer.whole = answer.whole or b"[DONE]" in data
        await reader.readline()


def quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else float("nan")


async def closed_loop(load: Load, clients: int, seconds: float) -> tuple[float, list[float]]:
    """(whole answers per second, times to the first token), the first quarter left out."""
    begun = time.perf_counter()
    answers: list[Answer] = []

    async def client() -> None:
        while time.perf_counter() < begun + seconds:
            answers.append(await load.ask())

    await asyncio.gather(*(client() for _ in range(clients)))
    counted = [answer for answer in answers if answer.whole and begun + seconds / 4 < answer.ended <= begun + seconds]
    return len(counted) / (seconds * 0.75), [answer.first for answer in counted]


def memory(process: psutil.Process) -> float:
    """Resident MB of the server's processes."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20
