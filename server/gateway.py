"""The gateway as a server on a socket. Importing it brings the web framework, the templates and the parsers: half of
a process's start, so it is imported while the model loads (server.run)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from engine.client import EngineClient
from server.app import build_app
from server.args import ServerArgs
from server.dialect import ModelDialect
from server.http_protocol import uvicorn_config


class GatewayServer(uvicorn.Server):
    """uvicorn without its own signal handlers (engine.shutdown owns them), and with an event for "listening"."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def make_server(engine: EngineClient, args: ServerArgs) -> tuple[GatewayServer, ModelDialect]:
    """A server that does not listen yet, and how it speaks to the model. Needs the engine's tokenizer only.

    Raises TemplateError or ValueError where the model's template or a parser cannot be used.
    """
    app = build_app(engine, args)
    dialect: ModelDialect = app.state.services.planner.dialect
    return GatewayServer(uvicorn_config(app, args)), dialect
