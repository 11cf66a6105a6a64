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
import time

import psutil
import uvloop

from benchmarks.load import Answer, Load, closed_loop, hash_lm_server, memory, quantile


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
    flags = ("--hash-lm-delay", str(options.delay), "--max-running-requests", str(options.rows), *options.serve)
    with hash_lm_server(options.port, *flags) as process:
        load = Load(options.port, options.prompt_tokens, options.max_tokens)
        uvloop.run(measure(load, process, options))


if __name__ == "__main__":
    main()
