"""A server without HTTP, for the signal tests: ``python -m tests.e2e.engine_server``.

Prints ``ready`` with its children's ids once all its streams have begun, then one line for each stream's end.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import replace

from engine.client import EngineUnavailable
from engine.launch import Engine, make_plan
from engine.shutdown import run
from tests.e2e.engines import collect, hash_lm, request, until


async def serve(engine: Engine, stop: asyncio.Event, streams: int, tokens: int) -> None:
    begun = [asyncio.Event() for _ in range(streams)]

    async def stream(index: int) -> None:
        async for output in engine.generate(request(f"stream {index}", max_tokens=tokens)):
            begun[index].set()
            if output.finish_reason is not None:
                print("stream", f"{output.finish_reason.type} {output.finish_reason.message}".strip(), flush=True)

    tasks = [asyncio.create_task(stream(index)) for index in range(streams)]
    await asyncio.gather(*[event.wait() for event in begun])
    print("ready", *engine.pids.values(), flush=True)
    await until(lambda: engine.state != "ready", 600)
    try:
        await collect(engine, request("late"))
    except EngineUnavailable as error:
        print(f"new request refused: {error.status} retry_after={error.retry_after:.0f}", flush=True)
    await stop.wait()
    await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--drain-timeout", type=float, default=30.0)
    parser.add_argument("--start-delay", type=float, default=0.0)
    args = parser.parse_args()

    def plan(config):
        made = make_plan(config)
        if not args.start_delay:
            return made
        return replace(made, model_command=("sleep", str(args.start_delay)))

    engine = Engine(hash_lm(run_dir=args.run_dir, hash_lm_delay=0.005), plan=plan)
    asyncio.run(
        run(engine, lambda stop: serve(engine, stop, args.streams, args.tokens), drain_timeout=args.drain_timeout)
    )


if __name__ == "__main__":
    main()
