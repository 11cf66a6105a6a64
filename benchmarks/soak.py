"""Hours in little: steady load with the odd bad request and client that leaves; does anything grow?

    python -m benchmarks.soak [--minutes 30] [--warm-up 5]

Starts ``callgate serve --model hash-lm``, measures its capacity and asks at 80 % of it, at random moments: chats with
tools, streams, several choices, grammars and prompts of all lengths; one in a hundred is refused, one in twenty leaves
before its answer ends. Every few seconds memory, descriptors, threads and metric series are read; printed is the slope
of a line through each, a ten minutes, after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import psutil
import uvloop

from benchmarks.load import Load, closed_loop, hash_lm_server, memory, post

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}},
        },
    }
]
INTERVAL = 2.0
LOAD = 0.8


def request(rng: random.Random, number: int) -> tuple[dict[str, Any], int]:
    """(a body for /v1/chat/completions, the status that it gets)."""
    content = f"{number} " + "word " * rng.randrange(1, 200)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": content}], "max_tokens": rng.randrange(4, 60)}
    if rng.random() < 0.01:
        return body | rng.choice([{"temperature": 9}, {"n": 10_000}, {"messages": []}, {"tools": "no"}]), 400
    kind = rng.randrange(6)
    if kind == 0:
        body |= {"tools": TOOLS, "tool_choice": "required"}
    elif kind == 1:
        schema = {"type": "object", "properties": {f"p{number % 50}": {"type": "integer"}}}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    elif kind == 2:
        body |= {"n": 3, "logprobs": True, "top_logprobs": 5}
    body["stream"] = rng.random() < 0.5
    return body, 200


class Soak:
    def __init__(self, port: int) -> None:
        self.port = port
        self.rng = random.Random(13)
        self.asked = self.left = self.refused = 0
        self.wrong: list[str] = []

    async def ask(self) -> None:
        self.asked += 1
        body, status = request(self.rng, self.asked)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(post("/v1/chat/completions", body, "connection: close"))
        if status == 200 and self.rng.random() < 0.05:
            self.left += 1
            await asyncio.sleep(self.rng.random() * 0.3)
        else:
            answer = await reader.read(-1)
            self.refused += answer[9:12] == b"400"
            whole = not body.get("stream") or status != 200 or b"[DONE]" in answer
            if answer[9:12] != str(status).encode() or not whole:
                self.wrong.append(answer[:200].decode("utf-8", "replace"))
        writer.close()

    async def sample(self, process: psutil.Process) -> list[float]:
        """MB, descriptors, threads and series now."""
        family = (process, *process.children(recursive=True))
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        series = sum(not line.startswith("#") for line in text.splitlines())
        fds, threads = sum(one.num_fds() for one in family), sum(one.num_threads() for one in family)
        return [memory(process), fds, threads, series]

    async def run(self, process: psutil.Process, rate: float, seconds: float) -> list[tuple[float, list[float]]]:
        samples: list[tuple[float, list[float]]] = []
        tasks: set[asyncio.Task[None]] = set()
        begun = time.perf_counter()
        moment, sampled = begun, begun
        while moment < begun + seconds:
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            task = asyncio.create_task(self.ask())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            moment += self.rng.expovariate(rate)
            if moment > sampled + INTERVAL:
                sampled = moment
                samples.append((moment - begun, await self.sample(process)))
        await asyncio.gather(*tasks)
        return samples


def slopes(samples: Sequence[tuple[float, list[float]]]) -> list[float]:
    """Growth of each value in ten minutes."""
    moments = np.array([moment for moment, _ in samples])
    return [
        float(np.polyfit(moments, np.array(values), 1)[0]) * 600
        for values in zip(*(v for _, v in samples), strict=True)
    ]


async def measure(port: int, process: psutil.Process, options: argparse.Namespace) -> None:
    soak = Soak(port)
    await closed_loop(Load(port, 500, 45), options.rows, 2)
    capacity, _ = await closed_loop(Load(port, 500, 45), options.rows, 10)
    samples = await soak.run(process, capacity * LOAD, options.minutes * 60)
    await asyncio.sleep(1.0)
    last = await soak.sample(process)
    counted = [sample for sample in samples if sample[0] >= options.warm_up * 60]
    print(
        f"{options.minutes:g} minutes at {capacity * LOAD:.1f} requests/s: {soak.asked} asked, {soak.left} left, "
        f"{soak.refused} refused, {len(soak.wrong)} answered wrongly"
    )
    names = ("memory MB", "descriptors", "threads", "series")
    for name, first, end, slope in zip(names, counted[0][1], last, slopes(counted), strict=True):
        print(f"{name}: {first:.1f} after the warm-up, {end:.1f} at the end, {slope:+.2f} in ten minutes")
    for answer in soak.wrong[:3]:
        print("wrong:", answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="minutes of these that do not count")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--port", type=int, default=8127)
    options = parser.parse_args()
    flags = ("--hash-lm-delay", "0.02", "--max-running-requests", str(options.rows))
    with hash_lm_server(options.port, *flags) as process:
        uvloop.run(measure(options.port, process, options))


if __name__ == "__main__":
    main()
