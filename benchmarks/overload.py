"""More requests than the server can take: what happens to those that get in and to those that do not.

    python -m benchmarks.overload [--factor 10] [--seconds 60] [--serve=--max-queue-time=0.5 ...]

Starts ``callgate serve --model hash-lm`` with a fixed time per step. Capacity is the rate of whole answers while as
many clients as the batch has rows each ask again as soon as they are answered; the time to the first token under that
load is what the one under overload is compared with. Then requests come at --factor times that rate, at random
moments and whatever became of the earlier ones. Afterwards one client measures when answers are quick again.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
import orjson
import psutil
import uvloop


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
    count: int = 0
    rng: random.Random = field(default_factory=lambda: random.Random(10))
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = field(default_factory=list)

    def payload(self) -> bytes:
        self.count += 1
        text = f"{self.count:08}" + "x" * max(0, self.prompt_tokens - 8)
        length = self.rng.randint(self.max_tokens // 2, self.max_tokens * 3 // 2)
        body = orjson.dumps({"model": "hash-lm", "prompt": text, "max_tokens": length, "stream": True})
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
        return head.encode() + b"content-type: application/json\r\n\r\n" + body

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


async def open_loop(load: Load, rate: float, seconds: float) -> list[Answer]:
    """Requests at random moments, ``rate`` a second, each on its own."""
    tasks: list[asyncio.Task[Answer]] = []
    begun = time.perf_counter()
    moment = begun
    while moment < begun + seconds:
        await asyncio.sleep(max(0.0, moment - time.perf_counter()))
        tasks.append(asyncio.create_task(load.ask()))
        moment += load.rng.expovariate(rate)
    return list(await asyncio.gather(*tasks))


def memory(process: psutil.Process) -> float:
    """Resident MB of the server's processes."""
    return sum(one.memory_info().rss for one in (process, *process.children(recursive=True))) / 2**20


async def measure(load: Load, process: psutil.Process, options: argparse.Namespace) -> None:
    await closed_loop(load, options.rows, 2)
    capacity, firsts = await closed_loop(load, options.rows, options.seconds / 2)
    at_capacity = quantile(firsts, 0.99)
    print(f"capacity {capacity:.1f} answers/s; first token p50 {quantile(firsts, 0.5):.3f} s, p99 {at_capacity:.3f} s")
    before, begun = memory(process), time.perf_counter()
    answers = await open_loop(load, capacity * options.factor, options.seconds)
    after = memory(process)
    refused = [answer for answer in answers if answer.status in (429, 503)]
    whole = [answer for answer in answers if answer.whole]
    in_time = sum(answer.ended <= begun + options.seconds for answer in whole)
    goodput = in_time / options.seconds / capacity
    first = [answer.first for answer in whole]
    later = quantile([answer.first for answer in whole if answer.asked > begun + options.seconds / 12], 0.99)
    p99 = quantile(first, 0.99)
    print(
        f"{options.factor:g}x for {options.seconds:g} s: {len(answers)} asked, {len(whole)} answered, "
        f"{len(refused)} refused ({sum(not answer.retry_after for answer in refused)} without Retry-After), "
        f"{len(answers) - len(whole) - len(refused)} else\n"
        f"refusals p50 {quantile([a.total for a in refused], 0.5) * 1000:.1f} ms, "
        f"p99 {quantile([a.total for a in refused], 0.99) * 1000:.1f} ms\n"
        f"admitted: first token p50 {quantile(first, 0.5):.3f} s, p99 {p99:.3f} s, {p99 / at_capacity:.2f}x; "
        f"without the first {options.seconds / 12:g} s, in which the batch fills at once, {later / at_capacity:.2f}x\n"
        f"goodput {goodput:.1%} of capacity; memory {after - before:+.1f} MB"
    )
    ended = time.perf_counter()
    while (answer := await load.ask()).first > at_capacity or not answer.whole:
        pass
    print(f"quick again after {time.perf_counter() - ended:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rows", type=int, default=16, help="the server's --max-running-requests")
    parser.add_argument("--delay", type=float, default=0.02, help="seconds a step")
    parser.add_argument("--prompt-tokens", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--port", type=int, default=8124)
    parser.add_argument("--serve", action="append", default=[], metavar="FLAG", help="a further flag of callgate serve")
    options = parser.parse_args()
    command = [sys.executable, "-m", "server", "serve", "--model", "hash-lm", "--port", str(options.port)]
    command += ["--hash-lm-delay", str(options.delay), "--max-running-requests", str(options.rows), *options.serve]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_ready(options.port)
            load = Load(options.port, options.prompt_tokens, options.max_tokens)
            uvloop.run(measure(load, psutil.Process(process.pid), options))
        finally:
            process.terminate()


def wait_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


if __name__ == "__main__":
    main()
