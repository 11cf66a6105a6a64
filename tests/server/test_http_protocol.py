"""A real uvicorn with our protocol: heads, bodies and readers that are slow, huge or odd."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from uvicorn.server import ServerState

from server import limits
from server.app import build_app
from server.args import ServerArgs
from server.constrainer import Constrainer
from server.http_protocol import uvicorn_config
from tests.fakes import Reply, ScriptedEngine
from tests.live import live
from tests.server.conftest import FakeChecker

TIMES = {"header_timeout": 0.6, "body_timeout": 1.2, "body_stall_timeout": 0.5, "write_timeout": 0.6}


@contextmanager
def serving(engine: ScriptedEngine, **args: Any) -> Iterator[Callable[[], socket.socket]]:
    """A function that opens a connection to a running gateway."""
    settings = ServerArgs(**{**TIMES, **args})
    app = build_app(engine, settings, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    with live(app, settings) as url:
        port = urlsplit(url).port

        def connect() -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", port), timeout=10)
            sock.settimeout(10)
            return sock

        yield connect


def read_all(sock: socket.socket) -> bytes:
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def ask(connect: Callable[[], socket.socket], payload: bytes) -> tuple[int, Any]:
    with connect() as sock:
        sock.sendall(payload)
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b"application/json" in head, head
    return int(head.split()[1]), json.loads(body)


HEAD = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(scope="module")
def connect() -> Iterator[Callable[[], socket.socket]]:
    with serving(ScriptedEngine("Hello!")) as found:
        yield found


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (b"\xde\xad\xbe\xef\r\n\r\n", 400),
        (b"GET /\r\n", 400),
        (b"G\0T / HTTP/1.1\r\n\r\n", 400),
        (HEAD + b"X-A: a\0b\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
        (HEAD + b"Host: y\r\nConnection: close\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: a/?x=\r\nConnection: close\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (HEAD + b"X-A: " + b"a" * 40000 + b"\r\n\r\n", 431),
        (HEAD + b"X-A: b\r\n" * 101 + b"\r\n", 431),
        (HEAD + b"X-A: " + b"a" * 200_000, 431),
        (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
        (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (POST + b"Content-Length: 1000000000000\r\n\r\n{", 413),
        (POST + b"Expect: 100-continue\r\nContent-Length: 9000000000\r\n\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n", 400),
        (POST + b'Content-Length: 500\r\n\r\n{"model":', 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nabc\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n", 400),
        (POST + b"Transfer-Encoding: xchunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 400),
        (POST + b"Connection: close\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/2.0") + b"Connection: close\r\n\r\n", 400),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/1.2") + b"Connection: close\r\n\r\n", 400),
        (HEAD + b"Upgrade: websocket\r\nConnection: close, Upgrade\r\nSec-WebSocket-Version: 13\r\n\r\n", 200),
    ],
)
def test_odd_requests(connect: Callable[[], socket.socket], payload: bytes, status: int) -> None:
    found, body = ask(connect, payload)
    assert found == status
    if status >= 400:
        assert body["error"].keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(("size", "status"), [(limits.MAX_URL_BYTES, 200), (limits.MAX_URL_BYTES + 1, 431)])
def test_the_longest_url(connect: Callable[[], socket.socket], size: int, status: int) -> None:
    url = b"/v1/models?" + b"a" * (size - len(b"/v1/models?"))
    found, _ = ask(connect, b"GET " + url + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert found == status


def test_slow_headers_are_ended(connect: Callable[[], socket.socket]) -> None:
    with connect() as sock:
        start = time.monotonic()
        sock.sendall(HEAD)
        data = read_all(sock)
    assert b" 408 " in data
    assert b'"request_timeout"' in data
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("first", [b"", b"\r\n", b"\r\n\r\n"])
def test_a_silent_connection_is_closed(connect: Callable[[], socket.socket], first: bytes) -> None:
    with connect() as sock:
        sock.sendall(first)
        assert b" 200 " not in read_all(sock)


def test_a_second_request_on_the_same_connection_has_its_own_header_timeout(
    connect: Callable[[], socket.socket],
) -> None:
    with connect() as sock:
        for _ in range(3):
            sock.sendall(HEAD + b"\r\n")
            assert b" 200 " in sock.recv(65536)
            time.sleep(0.3)
        sock.sendall(HEAD)
        assert b" 408 " in read_all(sock)


def test_a_trickling_body_is_ended(connect: Callable[[], socket.socket]) -> None:
    with connect() as sock:
        sock.sendall(POST + b"Content-Length: 1000\r\n\r\n")
        data = b""
        sock.settimeout(0.1)
        deadline = time.monotonic() + 8
        while not data and time.monotonic() < deadline:
            sock.sendall(b" ")
            try:
                data = sock.recv(65536)
            except TimeoutError:
                continue
    assert b" 408 " in data


def test_expect_100_continue(connect: Callable[[], socket.socket]) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    with connect() as sock:
        sock.sendall(POST + b"Expect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert sock.recv(100).startswith(b"HTTP/1.1 100")
        sock.sendall(body)
        assert b" 200 " in read_all(sock)


TCP_CLOSE = 7


def stream_request() -> bytes:
    body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true}'
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


def wait_for(condition: Callable[[], bool], seconds: float = 8) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_reader_that_stalls_is_dropped_and_its_generation_aborted() -> None:
    engine = ScriptedEngine(Reply("x" * 8_000_000, chunk=1000), model_info=huge_model())
    with serving(engine) as connect, connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(stream_request())
        assert wait_for(lambda: engine.running == 1)
        assert wait_for(lambda: engine.aborted == 1)
        assert engine.running == 0


def test_a_reader_that_stalls_is_noticed_before_the_kernel_holds_megabytes_and_reset() -> None:
    """Loopback would take 4 MB; and after a close it would keep them until the client reads."""
    engine = ScriptedEngine(Reply("x" * 1_500_000, chunk=1000), model_info=huge_model())
    with serving(engine) as connect, connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(stream_request())
        assert wait_for(lambda: engine.aborted == 1)
        assert wait_for(lambda: sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == TCP_CLOSE)


@pytest.mark.parametrize("stream", [False, True])
def test_a_connection_that_closes_aborts_the_generation(stream: bool) -> None:
    engine = ScriptedEngine(Reply("Hello world", chunk=1, hang_after=2))
    with serving(engine) as connect:
        sock = connect()
        request = stream_request()
        if not stream:
            request = request.replace(b'"stream":true', b'"stream":null')
        sock.sendall(request)
        assert wait_for(lambda: engine.running == 1)
        sock.close()
        assert wait_for(lambda: engine.aborted == 1)
        assert engine.running == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("further", [1, 3])
def test_a_client_that_leaves_is_noticed_though_it_sent_a_further_request(stream: bool, further: int) -> None:
    engine = ScriptedEngine(Reply("Hello world", chunk=1, hang_after=2))
    with serving(engine) as connect:
        sock = connect()
        request = stream_request()
        if not stream:
            request = request.replace(b'"stream":true', b'"stream":null')
        sock.sendall(request + (HEAD + b"\r\n") * further)
        assert wait_for(lambda: engine.running == 1)
        sock.close()
        assert wait_for(lambda: engine.aborted == 1)
        assert engine.running == 0


OFFER = b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"


@pytest.mark.parametrize("cut", [0, *range(1, len(b"Upgrade:") + 1)])
def test_an_offer_to_upgrade_is_not_taken(connect: Callable[[], socket.socket], cut: int) -> None:
    """Java's client offers h2c with its first request; ``cut``: where the field's name is split into two reads."""
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    before = POST + b"Content-Length: %d\r\n" % len(body)
    with connect() as sock:
        if cut:
            sock.sendall(before + OFFER[:cut])
            time.sleep(0.05)
            sock.sendall(OFFER[cut:] + b"\r\n" + body)
        else:
            sock.sendall(before.replace(b"Host", b"Expect: nothing\r\nHost") + OFFER.upper() + OFFER + b"\r\n" + body)
        head, _, answer = read_all(sock).partition(b"\r\n\r\n")
    assert b" 200 " in head, head
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello!"


def test_an_offer_on_a_connection_in_use_is_not_taken_either(connect: Callable[[], socket.socket]) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    with connect() as sock:
        sock.sendall(HEAD + b"\r\n")
        assert b" 200 " in sock.recv(65536)
        sock.sendall(POST + b"Content-Length: %d\r\n" % len(body) + OFFER + b"\r\n" + body)
        assert b"Hello!" in read_all(sock)


def test_a_stream_for_http_1_0_has_no_chunks(connect: Callable[[], socket.socket]) -> None:
    with connect() as sock:
        sock.sendall(stream_request().replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, _, body = read_all(sock).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert body.startswith(b"data: {")
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("path", [b"/health", b"/health/live", b"/v1/models", b"/v1/models/nope", b"/metrics"])
def test_head_is_get_without_the_body(connect: Callable[[], socket.socket], path: bytes) -> None:
    def answer(method: bytes) -> tuple[bytes, bytes]:
        with connect() as sock:
            sock.sendall(method + b" " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            head, _, body = read_all(sock).partition(b"\r\n\r\n")
            return head.partition(b"\r\n")[0], body

    status, body = answer(b"GET")
    assert body
    assert answer(b"HEAD") == (status, b"")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "rest",
    [
        b"garbage\r\n\r\n",
        b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n",
        HEAD * 200,
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_whole_request_is_answered_whatever_follows_it(
    connect: Callable[[], socket.socket], stream: bool, rest: bytes
) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"stream":%s}' % (b"true" if stream else b"false")
    with connect() as sock:
        sock.sendall(POST + b"Content-Length: %d\r\n\r\n" % len(body) + body + rest)
        answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"[DONE]" in answer if stream else b"Hello!" in answer


def test_pipelined_requests_are_answered_in_order() -> None:
    with serving(ScriptedEngine("Hello!")) as connect, connect() as sock:
        last = HEAD + b"Connection: close\r\n\r\n"
        sock.sendall(stream_request() + HEAD + b"\r\n" + stream_request() + last)
        data = read_all(sock)
    assert data.count(b"HTTP/1.1 200 OK") == 4
    assert [data.find(b"[DONE]") > 0, data.rfind(b'"object":"list"') > data.rfind(b"[DONE]")] == [True, True]


def test_connections_beyond_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits.RESERVED_DESCRIPTORS + 9, 1 << 20))
    with serving(ScriptedEngine("Hello!"), header_timeout=30.0) as connect:
        held = [connect() for _ in range(9)]
        held[8].sendall(HEAD + b"\r\n")
        assert b" 200 " in held[8].recv(65536)
        with connect() as sock:
            head, _, body = read_all(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: " in head
        assert json.loads(body)["error"]["code"] == "service_unavailable"
        held.pop().close()

        def enters() -> bool:
            with connect() as sock:
                sock.sendall(HEAD + b"Connection: close\r\n\r\n")
                return b" 200 " in read_all(sock)

        assert wait_for(enters)
        for sock in held:
            sock.close()


class StuckTransport(asyncio.Transport):
    """Takes bytes and never gets rid of them: the client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = False
        self.aborted = asyncio.Event()

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize(
    "payload",
    [HEAD + b"\r\n", HEAD + b"Connection: close\r\n\r\n", b"\xde\xad\xbe\xef\r\n\r\n", HEAD + b"Host: y\r\n\r\n"],
)
async def test_the_rest_of_an_answer_does_not_wait_for_ever(payload: bytes) -> None:
    settings = ServerArgs(**TIMES)
    app = build_app(ScriptedEngine("Hello!"), settings, constrainer=Constrainer(FakeChecker()))  # type: ignore[arg-type]
    config = uvicorn_config(app, settings)
    config.load()
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})  # type: ignore[call-arg]
    transport = StuckTransport()
    protocol.connection_made(transport)
    protocol.data_received(payload)
    await asyncio.wait_for(transport.aborted.wait(), 8)
    assert transport.written.startswith(b"HTTP/1.1 ")
    protocol.connection_lost(None)


def huge_model() -> Any:
    import msgspec

    from tests.fakes import MODEL_INFO

    return msgspec.structs.replace(MODEL_INFO, context_length=100_000_000)
