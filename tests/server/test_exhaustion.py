"""Where the machine has no more to give, a request gets a 503: it is neither the client's fault nor a fault of ours."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from engine.messages import GenerateOutput, GenerateReqInput
from tests.fakes import ScriptedEngine
from tests.server.conftest import events

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 9},
    "/api/chat": {"model": "test-model", "messages": [USER]},
    "/completion": {"prompt": "hi"},
    "/generate": {"text": "hi"},
}
EXHAUSTED: list[Exception] = [
    MemoryError(),
    RuntimeError("can't start new thread"),
    OSError(errno.ENOMEM, "Cannot allocate memory"),
    OSError(errno.EMFILE, "Too many open files"),
]


class ExhaustedEngine(ScriptedEngine):
    """Says ``deltas`` tokens, then there is no more of something."""

    error: Exception
    deltas = 0

    async def generate(self, request: GenerateReqInput) -> AsyncGenerator[GenerateOutput, None]:
        for number in range(1, self.deltas + 1):
            yield GenerateOutput(index=0, text="x", token_ids=(1,), prompt_tokens=9, completion_tokens=number)
        raise self.error


@pytest.mark.parametrize("error", EXHAUSTED, ids=repr)
@pytest.mark.parametrize("path", BODIES)
async def test_a_request_that_runs_out_of_something(
    make_gateway: Callable[..., Any], path: str, error: Exception
) -> None:
    engine = ExhaustedEngine()
    engine.error = error
    async with make_gateway(engine) as gateway:
        for stream in (False, True):
            response = await gateway.client.post(path, json={**BODIES[path], "stream": stream})
            assert (response.status_code, response.headers["retry-after"]) == (503, "5"), response.text
            assert "memory" in response.text


async def test_a_stream_that_runs_out_of_something(make_gateway: Callable[..., Any]) -> None:
    engine = ExhaustedEngine()
    engine.error, engine.deltas = MemoryError(), 2
    async with make_gateway(engine) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json={"messages": [USER], "stream": True})
    assert [event["error"]["code"] for event in events(response.text) if "error" in event] == ["service_unavailable"]


async def test_errors_of_other_kinds_are_still_ours(make_gateway: Callable[..., Any]) -> None:
    engine = ExhaustedEngine()
    async with make_gateway(engine) as gateway:
        for engine.error in (RuntimeError("no"), OSError(errno.EIO, "no"), OSError("no")):
            assert (await gateway.chat()).status_code == 500


LARGE = """
import asyncio, gc, logging, resource, sys
import httpx, orjson
from server.app import build_app
from server.args import ServerArgs
from tests.fakes import ScriptedEngine

USER = {"role": "user", "content": "hi"}
BODIES = [
    orjson.dumps({"messages": [{"role": "user", "content": "x" * 8_000_000}]}),
    b'{"messages": [{"role": "user", "content": "' + rb"\\u00e9" * 1_300_000 + b'"}]}',
    orjson.dumps({"messages": [{"role": "user", "content": "\\u4e2d" * 2_600_000}]}),
    orjson.dumps({"messages": [USER], "x": list(range(450_000))}),
    orjson.dumps({"messages": [USER], "x": ["%016d" % number for number in range(400_000)]}),
    orjson.dumps({"messages": [USER], "x": [{"a": number} for number in range(200_000)]}),
    orjson.dumps({"messages": [{"role": "user", "content": "y" * 2000}] * 4000}),
]


async def main() -> None:
    app = build_app(ScriptedEngine(), ServerArgs())
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1234))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as client:
        await client.post("/v1/chat/completions", json={"messages": [USER]})
        for megabytes in map(int, sys.argv[1].split(",")):
            for number, body in enumerate(BODIES):
                gc.collect()
                with open("/proc/self/statm") as statm:
                    size = int(statm.read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + (megabytes << 20), resource.RLIM_INFINITY))
                response = await client.post("/v1/chat/completions", content=body)
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                print(megabytes, number, response.status_code, response.text[:100], flush=True)


logging.disable()
asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
async def test_large_bodies_where_little_memory_is_left() -> None:
    """All of them are answered, whenever the memory ends; orjson alone would have ended the process."""
    command = (sys.executable, "-c", LARGE, "1,9,13,16,20,26,40,80,130,400")
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    assert len(answers) == 70
    for _, _, status, text in answers:
        assert status in ("200", "503") or "maximum context length" in text, done.stdout
    assert {status for *_, status, _ in answers[:7]} == {"503"}, "this test no longer tests anything"
    assert all(status != "503" for *_, status, _ in answers[-7:])
