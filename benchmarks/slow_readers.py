"""Clients that read one byte a second: what each costs in memory, and what it costs the others.

    python -m benchmarks.slow_readers [--readers 64] [--top-logprobs 20] [--max-tokens 10000]

Starts ``callgate serve --model hash-lm``. Memory is the resident memory of the API process at its highest, less what
it was before the readers came, and a first round is not counted: it warms up the allocator. A healthy stream runs
beside them, and for comparison beside as many clients that do read. At the end all of them must have been dropped and
every request must be gone.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import time

import httpx
import psutil
import uvloop

from benchmarks.load import hash_lm_server, post


def payload(options: argparse.Namespace, max_tokens: int, *, logprobs: bool) -> bytes:
    fields = {
        "messages": [{"role": "user", "content": f"{time.monotonic_ns()}"}],
        "max_tokens": max_tokens,
        "stream": True,
        **({"logprobs": True, "top_logprobs": options.top_logprobs} if logprobs and options.top_logprobs else {}),
    }
    return post("/v1/chat/completions", fields, "connection: close")


async def slow_reader(options: argparse.Namespace) -> float:
    """Seconds until the server dropped the connection."""
    loop = asyncio.get_running_loop()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", options.port))
        await loop.sock_sendall(sock, payload(options, options.max_tokens, logprobs=True))
        begun = time.monotonic()
        while time.monotonic() < begun + 120:
            await asyncio.sleep(1.0)
            if _dropped(sock):
                return time.monotonic() - begun
            try:
                await loop.sock_recv(sock, 1)
            except ConnectionError:
                return time.monotonic() - begun
    raise RuntimeError("a reader was not dropped")


def _dropped(sock: socket.socket) -> bool:
    """The other side has closed: one byte at a time would find out in hours."""
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1


async def healthy_stream(options: argparse.Namespace, tokens: int) -> float:
    """Tokens per second of a client that reads."""
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    writer.write(payload(options, tokens, logprobs=False))
    begun = time.perf_counter()
    received = await reader.read(-1)
    writer.close()
    if b"[DONE]" not in received:
        raise RuntimeError(received[:300].decode("utf-8", "replace"))
    return tokens / (time.perf_counter() - begun)


async def normal_reader(options: argparse.Namespace) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", options.port)
    writer.write(payload(options, options.max_tokens, logprobs=True))
    try:
        while await reader.read(65536):
            pass
    finally:
        writer.close()


async def healthy(options: argparse.Namespace, speeds: list[float]) -> None:
    await asyncio.sleep(2.0)
    while True:
        speeds.append(await healthy_stream(options, options.healthy_tokens))


async def beside_readers(options: argparse.Namespace) -> float:
    """Tokens per second of a healthy stream among clients that read."""
    speeds: list[float] = []
    tasks = [asyncio.create_task(normal_reader(options)) for _ in range(options.readers)]
    tasks.append(asyncio.create_task(healthy(options, speeds)))
    await asyncio.sleep(20.0)
    await end(tasks)
    await asyncio.sleep(2.0)
    return sum(speeds) / max(1, len(speeds))


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def stall(options: argparse.Namespace, process: psutil.Process) -> tuple[float, list[float], float]:
    """(MB above the start at the highest, seconds until each reader was dropped, healthy tokens/s meanwhile)."""
    before = process.memory_info().rss
    highest = before
    readers = [asyncio.create_task(slow_reader(options)) for _ in range(options.readers)]
    speeds: list[float] = []

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, process.memory_info().rss)
            await asyncio.sleep(0.1)

    others = [asyncio.create_task(watch()), asyncio.create_task(healthy(options, speeds))]
    dropped = list(await asyncio.gather(*readers))
    await end(others)
    return (highest - before) / 2**20, dropped, sum(speeds) / max(1, len(speeds))


async def measure(options: argparse.Namespace, process: psutil.Process) -> None:
    reading = await beside_readers(options)
    for label in ("warm-up", "measured"):
        grown, dropped, during = await stall(options, process)
        print(
            f"{label}: {options.readers} readers, {grown / options.readers:.2f} MB each ({grown:+.1f} MB); dropped "
            f"after {min(dropped):.1f} to {max(dropped):.1f} s; a healthy stream beside them {during:.1f} tokens/s, "
            f"beside clients that read {reading:.1f}",
            flush=True,
        )
    await asyncio.sleep(1.0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{options.port}") as client:
        lines = (await client.get("/metrics")).text.splitlines()
    print("afterwards:", *(line for line in lines if line.startswith(("callgate_requests_r", "callgate_requests_w"))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--top-logprobs", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=10_000)
    parser.add_argument("--healthy-tokens", type=int, default=50)
    parser.add_argument("--delay", type=float, default=0.04, help="seconds a step")
    parser.add_argument("--port", type=int, default=8125)
    options = parser.parse_args()
    flags = ["--hash-lm-delay", str(options.delay), "--max-running-requests", str(options.readers + 8)]
    flags += ["--kv-pages", str((options.readers + 8) * options.max_tokens // 16)]
    with hash_lm_server(options.port, *flags) as process:
        uvloop.run(measure(options, process))


if __name__ == "__main__":
    main()
