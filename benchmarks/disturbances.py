"""What others' bad manners cost a client that behaves.

    python -m benchmarks.disturbances [--seconds 30]

Starts ``callgate serve --model hash-lm`` and prints, for each of three: slow connections, 500 of them that send
nothing or a byte of their headers a second; prompts that can never fit, among small ones; and health probes, ten a
second, under prompts of 8,000 tokens that keep the engine busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import uvloop

from benchmarks.load import Answer, Load, hash_lm_server, quantile

CONNECTIONS = 500


async def healthy(load: Load, seconds: float) -> list[Answer]:
    """Small requests, one after another in each of four clients."""
    answers: list[Answer] = []
    end = time.perf_counter() + seconds

    async def client() -> None:
        while time.perf_counter() < end:
            answers.append(await load.ask())

    await asyncio.gather(*(client() for _ in range(4)))
    if not all(answer.whole for answer in answers):
        raise RuntimeError("a healthy request failed")
    return answers


def p99(answers: list[Answer], field: str) -> float:
    return quantile([getattr(answer, field) for answer in answers], 0.99)


async def slow_connection(port: int, *, silent: bool) -> float:
    """Seconds until the server ended it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = time.monotonic()

    async def trickle() -> None:
        for byte in b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-slow: " + b"y" * 10_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(1.0)

    sender = asyncio.create_task(asyncio.sleep(0) if silent else trickle())
    with contextlib.suppress(ConnectionError):
        while await reader.read(4096):
            pass
    sender.cancel()
    writer.close()
    return time.monotonic() - begun


async def slow_connections(load: Load, seconds: float) -> None:
    before = await healthy(load, seconds / 2)
    lasted: list[float] = []
    end = time.monotonic() + seconds

    async def keep(number: int) -> None:
        while time.monotonic() < end - 10:
            lasted.append(await slow_connection(load.port, silent=number % 2 == 0))

    slow = [asyncio.create_task(keep(number)) for number in range(CONNECTIONS)]
    during = await healthy(load, seconds)
    await asyncio.gather(*slow)
    print(
        f"{CONNECTIONS} slow connections: healthy p99 {p99(before, 'total') * 1000:.1f} ms before, "
        f"{p99(during, 'total') * 1000:.1f} ms during ({p99(during, 'total') / p99(before, 'total'):.2f}x); "
        f"{len(lasted)} were ended, after {max(lasted):.1f} s at the latest",
        flush=True,
    )


async def never_fits(load: Load) -> None:
    """One that cannot fit comes first, 50 small ones behind it; again and again."""
    huge = Load(load.port, 20_000, 4)
    quiet = [answer for _ in range(6) for answer in await asyncio.gather(*(load.ask() for _ in range(50)))]
    refused: list[Answer] = []
    disturbed: list[Answer] = []
    for _ in range(6):
        first = asyncio.create_task(huge.ask())
        await asyncio.sleep(0)
        disturbed += await asyncio.gather(*(load.ask() for _ in range(50)))
        refused.append(await first)
    print(
        f"prompts that never fit: {sum(answer.status == 400 for answer in refused)} of {len(refused)} got 400, "
        f"after {max(answer.total for answer in refused) * 1000:.1f} ms at most; 50 small ones behind: first token p99 "
        f"{p99(disturbed, 'first') / p99(quiet, 'first'):.2f}x",
        flush=True,
    )


@contextlib.asynccontextmanager
async def busy(port: int) -> AsyncIterator[None]:
    """Long prompts, so many at a time that the engine never rests."""
    load = Load(port, 8_000, 1)

    async def client() -> None:
        while True:
            await load.ask()

    clients = [asyncio.create_task(client()) for _ in range(64)]
    try:
        await asyncio.sleep(1.0)
        yield
    finally:
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def get(port: int, path: str) -> Answer:
    answer, begun = Answer(), time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode())
    answer.status = int((await reader.read(-1))[9:12])
    answer.total = time.perf_counter() - begun
    writer.close()
    return answer


async def probes(port: int, seconds: float) -> None:
    answers: list[Answer] = []
    async with busy(port):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answers += await asyncio.gather(get(port, "/health/ready"), get(port, "/health/live"))
            await asyncio.sleep(0.1)
    bad = sum(answer.status != 200 for answer in answers)
    print(
        f"{len(answers)} probes under long prompts: {bad} were not 200; p99 {p99(answers, 'total') * 1000:.1f} ms",
        flush=True,
    )


async def measure(port: int, seconds: float) -> None:
    load = Load(port, 100, 16)
    await healthy(load, 2)
    await slow_connections(load, seconds)
    await never_fits(load)
    await probes(port, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--port", type=int, default=8126)
    options = parser.parse_args()
    flags = ("--hash-lm-delay", "0.01", "--kv-pages", "65536", "--max-model-len", "16384")
    with hash_lm_server(options.port, *flags) as process:
        pids = [child.pid for child in process.children(recursive=True)]
        uvloop.run(measure(options.port, options.seconds))
        same = pids == [child.pid for child in process.children(recursive=True)]
        print("the same processes" if same else "PROCESSES WERE REPLACED")


if __name__ == "__main__":
    main()
