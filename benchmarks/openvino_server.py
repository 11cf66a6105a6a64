"""OpenVINO GenAI's ContinuousBatchingPipeline behind a streaming /v1/chat/completions, for comparisons only.

    VENV/bin/python benchmarks/openvino_server.py DIR --port 8001

DIR holds the converted model with tokenizer.json, chat_template.jinja and generation_config.json. It runs in a venv of
its own, so nothing of this project is imported. Tool calls are given only with tool_choice ``required``, through the
pipeline's own structured output; everything else is text.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import openvino
import openvino_genai as genai
from aiohttp import web
from tokenizers import Tokenizer


@dataclass
class Job:
    """One request; ``outputs`` gets lists of token ids, then a finish reason, or an exception."""

    ids: list[int]
    config: Any
    outputs: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)


class Engine(threading.Thread):
    """Steps the pipeline as long as there is a request, and sleeps otherwise."""

    def __init__(self, directory: Path, threads: int, cache_gb: int) -> None:
        super().__init__(daemon=True)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = cache_gb
        scheduler.max_num_seqs = 32
        scheduler.max_num_batched_tokens = 512
        scheduler.enable_prefix_caching = True
        scheduler.dynamic_split_fuse = True
        properties = {"INFERENCE_NUM_THREADS": threads}
        self.pipeline = genai.ContinuousBatchingPipeline(str(directory), scheduler, "CPU", properties)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.waiting: queue.Queue[Job] = queue.Queue()
        self.active: dict[int, tuple[Any, Job]] = {}

    def put(self, job: Job, item: Any) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(job.outputs.put_nowait, item)

    def run(self) -> None:
        number = 0
        while True:
            while not self.active or not self.waiting.empty():
                job, number = self.waiting.get(), number + 1
                try:
                    prompt = openvino.Tensor(np.array([job.ids], dtype=np.int64))
                    self.active[number] = (self.pipeline.add_request(number, prompt, job.config), job)
                except RuntimeError as error:
                    self.put(job, error)
            self.pipeline.step()
            for key in list(self.active):
                self.collect(key)

    def collect(self, key: int) -> None:
        handle, job = self.active[key]
        finished = None
        if handle.can_read():
            for output in handle.read().values():
                self.put(job, list(output.generated_ids))
                if output.finish_reason != genai.GenerationFinishReason.NONE:
                    length = output.finish_reason == genai.GenerationFinishReason.LENGTH
                    finished = "length" if length else "stop"
        elif handle.get_status() != genai.GenerationStatus.RUNNING:
            finished = "stop"
        if finished:
            self.put(job, finished)
            del self.active[key]


def call_schema(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """An object that is one call of one of the tools."""
    options = []
    for tool in tools:
        properties = {"name": {"const": tool["function"]["name"]}, "arguments": tool["function"]["parameters"]}
        one = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
        options.append(one | {"additionalProperties": False})
    return {"anyOf": options}


class Chat:
    """The one route."""

    def __init__(self, directory: Path, engine: Engine) -> None:
        self.engine = engine
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = lambda value, **_: json.dumps(value, ensure_ascii=False)
        self.template = environment.from_string((directory / "chat_template.jinja").read_text())
        stops = json.loads((directory / "generation_config.json").read_text())["eos_token_id"]
        self.stops = set(stops if isinstance(stops, list) else [stops])

    def config(self, body: dict[str, Any]) -> tuple[Any, bool]:
        """The generation config, and whether the answer is a call."""
        config = genai.GenerationConfig()
        config.max_new_tokens = body.get("max_tokens") or 256
        config.do_sample = False
        config.eos_token_id = max(self.stops)
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.stop_token_ids = set() if config.ignore_eos else self.stops
        forced = body.get("tool_choice") == "required"
        response_format = body.get("response_format") or {}
        schema = call_schema(body["tools"]) if forced else response_format.get("json_schema", {}).get("schema")
        if schema:
            config.structured_output_config = genai.StructuredOutputConfig()
            config.structured_output_config.json_schema = json.dumps(schema)
        return config, forced

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        prompt = self.template.render(messages=body["messages"], tools=body.get("tools"), add_generation_prompt=True)
        config, forced = self.config(body)
        job = Job(self.tokenizer.encode(prompt, add_special_tokens=False).ids, config)
        self.engine.waiting.put(job)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": f"chatcmpl-{time.time_ns()}", "object": "chat.completion.chunk", "model": body.get("model")}

        async def send(delta: dict[str, Any], finish: str | None = None) -> None:
            choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
            await response.write(f"data: {json.dumps(head | {'choices': choices})}\n\n".encode())

        await send({"role": "assistant"})
        ids, finish = await self.relay(job, send, quiet=forced)
        if forced:
            delta, finish = self.call(ids, finish)
            await send(delta)
        await send({}, finish)
        usage = {"prompt_tokens": len(job.ids), "completion_tokens": len(ids), "total_tokens": len(job.ids) + len(ids)}
        await response.write(f"data: {json.dumps(head | {'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode())
        return response

    async def relay(self, job: Job, send: Any, quiet: bool) -> tuple[list[int], str]:
        """Token ids and finish reason of a request, whose text is sent on unless ``quiet``."""
        ids: list[int] = []
        sent = ""
        while True:
            item = await job.outputs.get()
            if isinstance(item, Exception):
                raise web.HTTPInternalServerError(text=str(item))
            if isinstance(item, str):
                return ids, item
            ids += item
            text = "" if quiet else self.tokenizer.decode(ids, skip_special_tokens=True)
            if len(text) > len(sent) and not text.endswith("\ufffd"):
                await send({"content": text[len(sent) :]})
                sent = text

    def call(self, ids: list[int], finish: str) -> tuple[dict[str, Any], str]:
        """The answer as a call, or as text where it is none."""
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        try:
            value = json.loads(text)
            function = {"name": value["name"], "arguments": json.dumps(value["arguments"])}
        except (ValueError, KeyError, TypeError):
            return {"content": text}, finish
        return {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}, "tool_calls"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gb", type=int, default=2)
    args = parser.parse_args()
    engine = Engine(args.directory, args.threads, args.cache_gb)
    chat = Chat(args.directory, engine)
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/chat/completions", chat.handle)

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def start(_: web.Application) -> None:
        engine.loop = asyncio.get_running_loop()
        engine.start()

    app.router.add_get("/health", health)
    app.on_startup.append(start)
    web.run_app(app, host="127.0.0.1", port=args.port, print=None)


if __name__ == "__main__":
    main()
