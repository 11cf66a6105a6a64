"""The server process: one socket bound before anything is loaded, one engine, one uvicorn, one banner."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine.client import EngineClient
from engine.config import EngineConfig
from engine.launch import Engine
from engine.messages import ModelInfo
from engine.shutdown import first_done
from engine.shutdown import run as run_engine
from server.args import ServerArgs

if TYPE_CHECKING:
    from server.dialect import ModelDialect
    from server.gateway import GatewayServer

EXAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class PortInUse(Exception):
    """Nobody can listen there; the message is one line."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket, taken before the model is loaded. Raises PortInUse with the reason.

    It does not listen yet: a health check during the load is refused at once instead of left hanging.
    """
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, proto)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        hint = "; --port N takes another, --port 0 any free one" if error.errno == errno.EADDRINUSE else ""
        raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror or error}{hint}") from error
    return sock


async def serve(
    config: EngineConfig,
    args: ServerArgs,
    sock: socket.socket,
    *,
    drain_timeout: float,
    on_ready: Callable[[str], None],
) -> None:
    """Start the engine, serve until a signal, leave nothing behind.

    drain_timeout: seconds for running requests after the first signal. on_ready: gets the banner. Raises
    EngineStartError, EngineFailed, TemplateError, and OSError where the port was taken meanwhile.
    """
    engine = Engine(config)
    gc.disable()  # until it serves: nearly all that a start makes stays, and walking through it is a fifth of its time
    making = asyncio.create_task(_server(engine, args))

    async def serve_http(stop: asyncio.Event) -> None:
        server, dialect = await making
        serving = asyncio.create_task(server.serve(sockets=[sock]))
        try:
            await first_done(server.listening.wait(), serving)
            if server.listening.is_set():
                gc.freeze()  # what is there now stays: no collection while serving walks through it
                gc.enable()
                on_ready(banner(engine, args, dialect, sock))
            await first_done(stop.wait(), serving)
        finally:
            server.should_exit = True
            await serving

    try:
        await run_engine(engine, serve_http, drain_timeout=drain_timeout)
    finally:
        gc.enable()
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)


async def _server(engine: Engine, args: ServerArgs) -> tuple[GatewayServer, ModelDialect]:
    """The HTTP side, made while the engine's processes load the model."""
    await engine.tokenizer_ready.wait()

    def make() -> tuple[GatewayServer, ModelDialect]:
        from server.gateway import make_server  # not at the top: the processes would start only after it

        return make_server(engine, args)

    return await asyncio.to_thread(make)


def base_url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def banner(engine: EngineClient, args: ServerArgs, dialect: ModelDialect, sock: socket.socket) -> str:
    """What a newcomer needs to see, and one line to paste."""
    info = engine.model_info
    url = base_url(sock)
    name = args.served_model_names[0] if args.served_model_names else info.served_name
    lines = [
        "",
        f"  Callgate is ready at {url}/v1",
        f"  model        {name} ({info.architecture}, {info.model_path})",
        f"  runs on      {_device(info)}",
        f"  KV cache     {info.kv_capacity_tokens:,} tokens; one request may use {info.context_length:,}",
        f"  dialect      {dialect.why}",
        "",
        f"  {curl(url, name, bool(args.api_keys))}",
        "",
    ]
    return "\n".join(lines)


def _device(info: ModelInfo) -> str:
    quantized = "" if info.quantization in ("", "none") else f", weights {info.quantization}"
    return f"{info.device}, {info.dtype}{quantized} ({info.runner})"


def curl(url: str, model: str, with_key: bool) -> str:
    """A request with ``tools`` that a shell takes as it is."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "What is the weather in Oslo?"}],
        "tools": [EXAMPLE_TOOL],
        "temperature": 0,
    }
    key = ' -H "authorization: Bearer $CALLGATE_API_KEY"' if with_key else ""
    data = json.dumps(body, ensure_ascii=False).replace("'", "'\\''")
    return f"curl {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{data}'"
