"""uvicorn's httptools protocol with the limits it lacks.

* the request line and headers must arrive within ``header_timeout`` and keep to the size limits of limits.py,
  counted as the bytes arrive;
* a connection that sends nothing is closed after ``header_timeout``, an idle one after uvicorn's keep-alive;
* a client that does not read for ``write_timeout`` while we have something to send is cut off, which reaches the
  application as a disconnect and so aborts its generation; nor does the rest of an answer wait longer for it;
* a client that has sent a further request before the answer is still noticed when it leaves;
* connections beyond ``max_connections`` get 503, so that descriptors are left for the engine's own processes;
* what is refused here gets an OpenAI error object too, a broken body included; bytes that are no HTTP after a whole
  request end the connection after its answer, not before;
* an offer to upgrade is not taken, and the request behind it is answered with its body (Java's client offers h2c);
* clients of HTTP/1.0 get streams without chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from server import limits
from server.args import ServerArgs
from server.descriptors import max_connections
from server.errors import ApiError, BadRequest, HeadersTooLarge, RequestTimeout, Unavailable

_TCP_ESTABLISHED = 1
_UNSENT_BYTES = 128 * 1024
"""What the kernel takes for a connection beyond what is on its way; it would take 4 MB, and nobody would notice that
the client does not read."""
_UPGRADE = re.compile(rb"\nupgrade(?=:)", re.IGNORECASE)
_UPGRADE_BYTES = len(b"\nupgrade")
_WATCH_INTERVAL = 0.25
"""Seconds between two looks at a connection from which nothing is read."""


class GatewayProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(
        self, *args: Any, header_timeout: float, write_timeout: float, max_connections: int, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._header_timeout = header_timeout
        self._write_timeout = write_timeout
        self._max_connections = max_connections
        self._answering: RequestResponseCycle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self.url = b""
        self._in_head = True
        self._head_bytes = 0
        self._head_count = 0
        self._head_tail = b""
        self._before_body = True
        self._ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        bound_kernel_buffer(self.transport.get_extra_info("socket"))
        if len(self.connections) > self._max_connections:
            self._refuse(Unavailable("The server has too many open connections."))
        else:
            self._arm_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_header_timer()
        self._cancel_write_timer()
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True  # uvicorn tells only the newest of pipelined requests
            self._answering.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle

        old = cycle.scope["http_version"] == "1.0"

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await cast("ASGIApp", app)(scope, receive, _Unchunked(cycle) if old else send)
            finally:
                self.loop.call_soon(self._expect_flush)

        super()._start_asgi_task(cycle, cast("Any", answer))

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._ended:
            return
        super().data_received(self._without_upgrade(data) if self._before_body else data)
        if self.transport.is_closing() or not self._in_head:
            return
        self._head_count += len(data)
        if self._head_count > limits.MAX_HEADER_BYTES + limits.MAX_URL_BYTES:
            self._refuse(_too_large())
        elif self._is_version_0_9(data):
            self._refuse(BadRequest("Invalid HTTP request: HTTP/1.1 is expected."))
        elif self._header_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._arm_header_timer()

    def _without_upgrade(self, data: bytes) -> bytes:
        """The same head with another name for ``Upgrade``, for which the parser would give up the request's body."""
        known = len(self._head_tail)
        window = self._head_tail + data
        end = max(0, window.find(b"\r\n\r\n")) or len(window)
        self._head_tail = window[-_UPGRADE_BYTES:]
        for found in reversed([*_UPGRADE.finditer(window, 0, end)]):
            colon = found.end() - known
            data = data[:colon] + b"-" + data[colon:]
        return data

    def _is_version_0_9(self, data: bytes) -> bool:
        """A request line without a version: HTTP/0.9, which the parser takes for the start of a longer head."""
        return bool(self.url) and data.endswith(b"\n") and self.parser.get_http_version().startswith("0")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._head_count = True, 0, 0
        if self._header_timer is None:
            self._arm_header_timer()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count(len(self.url), limits.MAX_URL_BYTES)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value)
        self._count(self._head_bytes, limits.MAX_HEADER_BYTES)
        self._count(len(self.headers), limits.MAX_HEADERS)

    def on_headers_complete(self) -> None:
        self._in_head = self._before_body = False
        self._head_tail = b""
        self._cancel_header_timer()
        if self.parser.get_http_version() not in ("1.0", "1.1"):
            self._refuse(BadRequest("Invalid HTTP request: HTTP/1.1 is expected."))
            raise ValueError("unknown version of HTTP")
        super().on_headers_complete()
        if self.pipeline and self._watch_timer is None:
            self._watch_connection()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._before_body = True

    def _watch_connection(self) -> None:
        """Look for the end of a connection that is not read, because a further request waits for the answer."""
        self._watch_timer = None
        if not self.pipeline or self.transport.is_closing():
            return
        sock = self.transport.get_extra_info("socket")
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
        if state != _TCP_ESTABLISHED:
            self.transport.abort()
            return
        self._watch_timer = self.loop.call_later(_WATCH_INTERVAL, self._watch_connection)

    def _count(self, value: int, limit: int) -> None:
        """Refuse and stop the parser, which turns any exception of a callback into its own error."""
        if value > limit:
            self._refuse(_too_large())
            raise ValueError("request head over a limit")

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            self._arm_write_timer(self._cut_off)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_write_timer()
        if self._answering is None or self._answering.response_complete:
            self._expect_flush()

    def timeout_keep_alive_handler(self) -> None:
        if self._was_paused(self.timeout_keep_alive_task):
            again = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = again
            return
        super().timeout_keep_alive_handler()
        self._expect_flush()

    def shutdown(self) -> None:
        super().shutdown()
        self._expect_flush()

    def _expect_flush(self) -> None:
        """After an answer: a closing connection waits for its last bytes for ever, unless somebody ends it."""
        if self._write_timer is None and self.transport.get_write_buffer_size() > 0:
            self._arm_write_timer(self._flush_timed_out)

    def _flush_timed_out(self) -> None:
        if self.transport.get_write_buffer_size() > 0:
            self._cut_off()

    def _cut_off(self) -> None:
        """Reset the connection: after a mere close the kernel would keep what is unsent for many minutes."""
        sock = self.transport.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """We never upgrade; the request goes on as plain HTTP."""

    def send_400_response(self, msg: str) -> None:
        self._refuse(BadRequest("Invalid HTTP request."))

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error and close, where nobody else is answering. Otherwise what came after the request that
        is being answered is at fault: its answer is the last."""
        if self.transport.is_closing() or self._ended:
            return
        self._cancel_header_timer()
        cycle, answering = self.cycle, self._answering
        busy = answering is not None and not answering.response_complete
        if answering is not None and busy and not (cycle is answering and cycle.more_body):
            self._ended, answering.keep_alive = True, False
            return
        if cycle is None or not cycle.response_started or cycle.response_complete:
            body = error.json()
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
            more = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items()).encode("latin-1")
            self.transport.write(STATUS_LINE[error.status] + head + more + b"\r\n" + body)
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()
        self.transport.close()
        self._expect_flush()

    def _arm_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(self._header_timeout, self._header_timed_out)

    def _header_timed_out(self) -> None:
        timer, self._header_timer = self._header_timer, None
        if self._was_paused(timer):
            self._arm_header_timer()
        elif self._head_count:
            self._refuse(RequestTimeout("The request's headers did not arrive in time."))
        elif not self.transport.is_closing():
            self.transport.close()

    def _arm_write_timer(self, then: Callable[[], None]) -> None:
        self._write_timer = self.loop.call_later(self._write_timeout, self._write_timed_out, then)

    def _write_timed_out(self, then: Callable[[], None]) -> None:
        timer, self._write_timer = self._write_timer, None
        if self._was_paused(timer):
            self._arm_write_timer(then)
        else:
            then()

    def _was_paused(self, timer: asyncio.TimerHandle | None) -> bool:
        return timer is not None and self.loop.time() - timer.when() > limits.PAUSE_SECONDS

    def _cancel_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def bound_kernel_buffer(sock: socket.socket | None) -> None:
    """What is sent and not yet acknowledged stays unbounded, so that fast clients far away are not slowed down."""
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, AttributeError):  # not everywhere
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)


class _Unchunked:
    """``send`` for HTTP/1.0, which has no chunks: a body without a length goes on until the connection ends."""

    __slots__ = ("_cycle", "_endless")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._endless = False

    async def __call__(self, message: Message) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start":
            self._endless = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._endless:
                cycle.chunked_encoding = False
        elif self._endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await cycle.send(cast("Any", message))


def _too_large() -> HeadersTooLarge:
    return HeadersTooLarge("The request line or the headers are too large.")


def uvicorn_config(app: Any, args: ServerArgs) -> uvicorn.Config:
    """How the gateway is served: no server or date header games, no access log of uvicorn's own, no websockets."""
    protocol = partial(
        GatewayProtocol,
        header_timeout=args.header_timeout,
        write_timeout=args.write_timeout,
        max_connections=max_connections(),
    )
    return uvicorn.Config(
        app,
        host=args.host,
        port=args.port,
        http=cast("Any", protocol),
        ws="none",
        lifespan="auto",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(args.keep_alive_timeout),
        timeout_graceful_shutdown=args.graceful_shutdown_timeout,
    )
