"""Hours in little: steady load with the odd bad request and client that leaves; does anything grow?

    python -m benchmarks.soak [--minutes 30] [--warm-up 5] [--model hash-lm] [--rate REQUESTS_A_SECOND]

Starts ``callgate serve``, measures its capacity and asks at 80 % of it, or at ``--rate``, at random moments: chats with
tools, streams, several choices, grammars and prompts of all lengths; one in a hundred is refused, one in twenty leaves
before its answer ends. Every few seconds the memory of each process, descriptors, threads and metric series are read,
and one fixed request is asked whose answer must be the first one's, byte for byte; printed is the slope of a line
through each, a ten minutes, after the warm-up, and at the end what the engine still holds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import psutil
import uvloop

from benchmarks.load import Load, closed_loop, post, serving

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
        self.asked = self.left = self.refused = self.busy = 0
        self.wrong: list[str] = []
        self.probes: Counter[str] = Counter()

    async def ask(self) -> None:
        self.asked += 1
        body, status = request(self.rng, self.asked)
        leaves = status == 200 and self.rng.random() < 0.05
        self.left += leaves
        try:
            answer = await self.answer(body, self.rng.random() * 0.3 if leaves else None)
        except OSError as error:
            self.wrong.append(repr(error))
            return
        self.refused += answer[9:12] == b"400"
        busy = answer[9:12] == b"503"  # others' work slows the machine down below the rate
        self.busy += busy
        whole = not body.get("stream") or status != 200 or b"[DONE]" in answer
        if not leaves and not busy and (answer[9:12] != str(status).encode() or not whole):
            self.wrong.append(answer[:200].decode("utf-8", "replace") or "closed without an answer")

    async def answer(self, body: dict[str, Any], leave_after: float | None) -> bytes:
        """All that the server sends; b"" where the client leaves."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(post("/v1/chat/completions", body, "connection: close"))
            if leave_after is None:
                return await reader.read(-1)
            await asyncio.sleep(leave_after)
            return b""
        finally:
            writer.close()

    async def probe(self) -> None:
        """One greedy request, the same each time."""
        messages = [{"role": "user", "content": "Count to ten, please. " * 8}]
        body = {"messages": messages, "max_tokens": 24, "temperature": 0, "logprobs": True, "seed": 1}
        try:
            async with httpx.AsyncClient(timeout=300) as client:
                answer = await client.post(f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body)
        except httpx.TransportError as error:
            self.wrong.append(repr(error))
            return
        if answer.status_code == 200:
            whole = answer.json()
            whole["usage"].pop("prompt_tokens_details", None)
            self.probes[str((whole["choices"], whole["usage"]))] += 1
        elif answer.status_code != 503:
            self.wrong.append(answer.text[:200])

    async def metrics(self) -> dict[str, float]:
        async with httpx.AsyncClient(timeout=300) as client:
            text = (await client.get(f"http://127.0.0.1:{self.port}/metrics")).text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    async def sample(self, process: psutil.Process) -> dict[str, float]:
        """MB of each process, descriptors, threads and series now."""
        family = (process, *process.children(recursive=True))
        return {
            **{f"memory of {name(one)} MB": one.memory_info().rss / 2**20 for one in family},
            "descriptors": sum(one.num_fds() for one in family),
            "threads": sum(one.num_threads() for one in family),
            "series": len(await self.metrics()),
        }

    async def run(self, process: psutil.Process, rate: float, seconds: float) -> list[tuple[float, dict[str, float]]]:
        samples: list[tuple[float, dict[str, float]]] = []
        tasks: set[asyncio.Task[None]] = set()
        begun = time.perf_counter()
        moment, sampled = begun, begun
        while moment < begun + seconds:
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            asked = [self.ask()]
            moment += self.rng.expovariate(rate)
            if moment > sampled + INTERVAL:
                sampled = moment
                samples.append((moment - begun, await self.sample(process)))
                asked.append(self.probe())
            for one in asked:
                task = asyncio.create_task(one)
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        return samples


def name(process: psutil.Process) -> str:
    """The module that a process of the server runs."""
    command = process.cmdline()
    return command[command.index("-m") + 1] if "-m" in command else command[0]


def slope(samples: Sequence[tuple[float, dict[str, float]]], of: str) -> float:
    """Growth in ten minutes."""
    points = [(moment, values[of]) for moment, values in samples if of in values]
    moments, values = np.array(points).T
    return float(np.polyfit(moments, values, 1)[0]) * 600


async def measure(port: int, process: psutil.Process, options: argparse.Namespace) -> None:
    soak = Soak(port)
    rate = options.rate
    if not rate:
        await closed_loop(Load(port, 500, 45, options.model), options.rows, 2)
        rate = (await closed_loop(Load(port, 500, 45, options.model), options.rows, 10))[0] * LOAD
    samples = await soak.run(process, rate, options.minutes * 60)
    await asyncio.sleep(1.0)
    last = await soak.sample(process)
    counted = [sample for sample in samples if sample[0] >= options.warm_up * 60]
    print(
        f"{options.minutes:g} minutes at {rate:.1f} requests/s: {soak.asked} asked, {soak.left} left, "
        f"{soak.refused} refused, {soak.busy} told to come back, {len(soak.wrong)} answered wrongly"
    )
    print(f"{soak.probes.total()} probes, {len(soak.probes)} different answers")
    for of, end in last.items():
        first = counted[0][1].get(of, float("nan"))
        growth = slope(counted, of)
        print(f"{of}: {first:.1f} after the warm-up, {end:.1f} at the end, {growth:+.2f} in ten minutes")
    held = await soak.metrics()
    left = ("requests_running", "requests_waiting", "kv_free_pages", "kv_cached_pages", "kv_total_pages")
    print("left:", ", ".join(f"{of} {held[f'callgate_{of}']:g}" for of in left))
    print(f"leaked pages: {held['callgate_kv_leaked_pages_total']:g}")
    for answer in soak.wrong[:3]:
        print("wrong:", answer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=5.0, help="minutes of these that do not count")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--port", type=int, default=8127)
    parser.add_argument("--model", default="hash-lm")
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second, instead of 80 %% of the capacity")
    parser.add_argument("--serve", action="append", default=[], metavar="FLAG", help="a further flag of callgate serve")
    options = parser.parse_args()
    flags = ["--max-running-requests", str(options.rows), *options.serve]
    if options.model == "hash-lm":
        flags += ["--hash-lm-delay", "0.02"]
    with serving(options.model, options.port, *flags) as process:
        uvloop.run(measure(options.port, process, options))


if __name__ == "__main__":
    main()
