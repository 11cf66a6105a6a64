"""What tenants send reaches no log, no metric and no other tenant's answer, whatever becomes of the request."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.test_serve import Server
from tests.engine.scale import scaled

pytestmark = pytest.mark.e2e

TENANTS = 8
ADMIN = "sk-admin-5c1e77"


def secret(tenant: int, number: int) -> str:
    return f"CANARY-{tenant}-{random.Random(f'{tenant} {number}').getrandbits(64):016x}"


def requests_of(text: str) -> list[tuple[str, bytes | dict[str, Any]]]:
    """Good and bad requests that hold ``text`` where clients put what is theirs."""
    chat = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    tool = {"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}
    broken = {"type": "function", "function": {"name": "f", "parameters": {"type": "string", "pattern": f"({text}"}}}
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [text] * 3, "not": {}}}}
    return [
        ("/v1/chat/completions", {**chat, "tools": [tool], "tool_choice": "required"}),
        ("/v1/chat/completions", {**chat, "tools": [broken]}),
        ("/v1/chat/completions", {**chat, "response_format": schema}),
        ("/v1/chat/completions", {**chat, "messages": [{"role": text, "content": text}]}),
        ("/v1/chat/completions", {**chat, "temperature": text, "user": text, "metadata": {"a": text}}),
        ("/v1/chat/completions", {**chat, "stop": [text], "n": 3, "logprobs": True, "top_logprobs": 3}),
        ("/v1/chat/completions", b'{"messages": "' + text.encode() + b"\xff"),
        ("/v1/completions", {"model": "m", "prompt": text, "echo": True, "max_tokens": 4}),
        ("/v1/completions", {"model": text, "prompt": text, "max_tokens": 4, "suffix": text}),
        ("/v1/responses", {"model": "m", "input": text, "instructions": text, "max_output_tokens": 4}),
        (
            "/v1/messages",
            {"model": "m", "max_tokens": 4, "system": text, "messages": [{"role": "user", "content": text}]},
        ),
        ("/v1/embeddings", {"model": "m", "input": [text, 5]}),
        ("/tokenize", {"prompt": text}),
        ("/generate", {"text": text, "sampling_params": {"regex": f"({text}", "max_new_tokens": 4}}),
    ]


async def ask(client: httpx.AsyncClient, key: str, path: str, body: bytes | dict[str, Any], leave: bool) -> str:
    """The answer's text; "" where this client leaves in its middle or the server cannot answer."""
    content = body if isinstance(body, bytes) else httpx.Request("POST", "http://x", json=body).content
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    if leave:
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            async with asyncio.timeout(0.02):
                await client.post(path, content=content, headers=headers)
        return ""
    try:
        return (await client.post(path, content=content, headers=headers)).text
    except httpx.TransportError:
        return ""


async def tenant(client: httpx.AsyncClient, number: int, rounds: int) -> list[str]:
    """Whatever one tenant was answered. A tenth of its requests is left, a tenth comes with a key that is none."""
    rng, answers = random.Random(number), []
    for turn in range(rounds):
        for path, body in requests_of(secret(number, turn)):
            key = f"sk-tenant-{number}" if rng.random() > 0.1 else secret(number, -1)
            answers.append(await ask(client, key, path, body, leave=rng.random() < 0.1))
    return [*answers, await echo(client, number)]


async def echo(client: httpx.AsyncClient, number: int) -> str:
    """A tenant's own text, as soon as the engine that was killed is there again."""
    wanted = secret(number, 0)
    body = {"model": "m", "prompt": wanted, "echo": True, "max_tokens": 4}
    for _ in range(300):
        text = await ask(client, f"sk-tenant-{number}", "/v1/completions", body, leave=False)
        if wanted in text:
            return text
        await asyncio.sleep(0.2)
    return ""


async def test_no_log_and_no_other_tenant_sees_what_one_has_sent(run_dir: Path, tmp_path: Path) -> None:
    keys = [argument for i in range(TENANTS) for argument in ("--api-key", f"sk-tenant-{i}")]
    server = Server(
        [
            "--log-level",
            "debug",
            "--run-dir",
            str(run_dir),
            "--served-model-name",
            "m",
            "--admin-api-key",
            ADMIN,
            *keys,
        ],
        tmp_path / "server.log",
    )
    try:
        url = server.wait_ready()
        rounds = scaled(2)
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            tenants = [asyncio.create_task(tenant(client, i, rounds)) for i in range(TENANTS)]
            await asyncio.sleep(1)
            for child in psutil.Process(server.process.pid).children():
                child.send_signal(signal.SIGKILL)
            answers = await asyncio.gather(*tenants)
            metrics = (await client.get("/metrics", headers={"authorization": f"Bearer {ADMIN}"})).text
        assert "callgate" in metrics
        sent = [{secret(i, turn) for turn in range(-1, rounds)} for i in range(TENANTS)]
        for number, texts in enumerate(answers):
            assert secret(number, 0) in texts[-1], "echoed to its own"
            others = set[str]().union(*(sent[i] for i in range(TENANTS) if i != number))
            assert not [text for text in texts if any(other in text for other in others)]
        for text in (server.output, metrics):
            assert "CANARY-" not in text
            assert "sk-tenant" not in text
            assert ADMIN not in text
        assert len(server.output.splitlines()) > TENANTS * rounds, "it has logged"
    finally:
        server.process.terminate()
        server.process.wait(30)
