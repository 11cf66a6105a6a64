"""A process that is stopped for a while, or gets no processor time: that time is nobody's fault, no client's either."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from tests.fakes import Reply, ScriptedEngine
from tests.server.test_http_protocol import HEAD, POST, huge_model, serving, stream_request, wait_for


class PausedEngine(ScriptedEngine):
    """Holds up its whole process once, as a stopped machine would."""

    def __init__(self, script: Any = "Hello!", **more: Any) -> None:
        super().__init__(script, **more)
        self.paused = False

    def _reply(self, request: Any, index: int) -> Reply:
        if request.sampling.max_tokens == 77:
            self.paused = True
            time.sleep(2.5)
            self.paused = False
        return super()._reply(request, index)


PAUSE = POST + b'Content-Length: 62\r\n\r\n{"messages":[{"role":"user","content":"hi"}],"max_tokens":77}  '


@pytest.mark.parametrize("cut", ["connection", "line", "headers", "body", "between"])
@pytest.mark.parametrize("after", [0.0, 0.3])
def test_time_in_which_the_process_was_paused_is_not_the_clients(cut: str, after: float) -> None:
    """All the time that a client has for the rest of its request passes in a pause, in which it sends that, or after
    which, where it was stopped too."""
    engine = PausedEngine()
    request = stream_request()
    place = {"connection": 0, "line": 10, "headers": 40, "body": request.index(b"\r\n\r\n") + 10, "between": 0}[cut]
    with serving(engine, keep_alive_timeout=1.0) as connect, connect() as other, connect() as sock:
        if cut == "between":
            sock.sendall(HEAD + b"\r\n")
            assert b" 200 " in read_until(sock, b"]}")
        sock.sendall(request[:place])
        time.sleep(0.1)
        other.sendall(PAUSE)
        assert wait_for(lambda: engine.paused)
        if after:
            assert wait_for(lambda: not engine.paused)
            time.sleep(after)
        sock.sendall(request[place:])
        assert read_until(sock, b"[DONE]").startswith(b"HTTP/1.1 200 OK")


def test_what_was_read_while_the_process_was_paused_was_read_in_time() -> None:
    engine = PausedEngine(Reply("x" * 3_000_000, chunk=1000), model_info=huge_model())
    with serving(engine, write_timeout=1.5) as connect, connect() as other, connect() as sock:
        sock.sendall(stream_request())
        assert wait_for(lambda: engine.running == 1)
        time.sleep(0.3)
        other.sendall(PAUSE)
        assert wait_for(lambda: engine.paused)
        answer = read_until(sock, b"[DONE]")
    assert answer.count(b"x") > 2_900_000


def read_until(sock: socket.socket, end: bytes) -> bytes:
    answer = bytearray()
    while end not in answer[-100:]:
        piece = sock.recv(1 << 20)
        assert piece, "closed before the end"
        answer += piece
    return bytes(answer)
