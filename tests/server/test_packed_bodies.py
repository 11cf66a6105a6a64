"""Packed request bodies: what is unpacked, how far, and what is refused; the same on every route that takes a body."""

from __future__ import annotations

import gzip
import json
import tracemalloc
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from server import limits
from server.errors import BadRequest, TooLarge
from server.unpacking import unpack
from tests.server.conftest import Gateway

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {**CHAT, "max_tokens": 5},
    "/generate": {"text": "hi"},
    "/tokenize": {"prompt": "hi"},
}


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


def gzipped(data: bytes) -> bytes:
    """By gzip, the same bytes at any time: they are in the tests' names."""
    return gzip.compress(data, mtime=0)


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzipped),
    ("x-gzip", gzipped),
    ("GZIP", gzipped),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("identity", bytes),
]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("coding", "pack"), PACKERS)
async def test_every_route_takes_packed_bodies(
    gateway: Gateway, path: str, coding: str, pack: Callable[[bytes], bytes]
) -> None:
    body = pack(json.dumps(ROUTES[path]).encode())
    response = await gateway.client.post(path, content=body, headers={"content-encoding": coding})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "nonsense", "gzip;q=1"])
async def test_other_codings_are_415_and_say_what_is_read(gateway: Gateway, path: str, coding: str) -> None:
    response = await gateway.client.post(path, content=b"{}", headers={"content-encoding": coding})
    assert response.status_code == 415
    assert response.headers["accept-encoding"] == "gzip, deflate"
    assert response.json()["error"]["code"] == "unsupported_media_type"


async def test_two_headers_of_coding_are_415(gateway: Gateway) -> None:
    twice = gzipped(gzipped(json.dumps(CHAT).encode()))
    headers = [("content-encoding", "gzip"), ("content-encoding", "gzip")]
    response = await gateway.client.post("/v1/chat/completions", content=twice, headers=headers)
    assert response.status_code == 415


BODY = json.dumps(CHAT).encode()
BROKEN: list[tuple[str, bytes]] = [
    ("gzip", BODY),
    ("gzip", b""),
    ("deflate", BODY),
    ("gzip", gzipped(BODY)[:-1]),
    ("gzip", gzipped(BODY)[:20]),
    ("deflate", zlib.compress(BODY)[:-1]),
    ("gzip", gzipped(BODY)[:-8] + b"\0" * 8),
    ("deflate", zlib.compress(BODY)[:-4] + b"\0" * 4),
    ("gzip", gzipped(BODY) + b"x"),
    ("gzip", gzipped(BODY[:20]) + gzipped(BODY[20:])),
    ("deflate", raw_deflate(BODY) + b"x"),
    ("gzip", raw_deflate(BODY)),
    ("gzip", gzipped(b"{")),
    ("gzip", gzipped(gzipped(BODY))),
]


@pytest.mark.parametrize(("coding", "body"), BROKEN)
async def test_what_is_broken_is_400(gateway: Gateway, coding: str, body: bytes) -> None:
    headers = {"content-encoding": coding}
    response = await gateway.client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, raw_deflate])
def test_no_more_is_unpacked_than_a_plain_body_may_have(pack: Callable[[bytes], bytes]) -> None:
    coding = "gzip" if pack is gzip.compress else "deflate"
    assert unpack(pack(bytes(1000)), coding, 1000) == bytes(1000)
    with pytest.raises(TooLarge):
        unpack(pack(bytes(1001)), coding, 1000)


def test_a_bomb_takes_no_memory() -> None:
    bomb = gzipped(bytes(1 << 26))
    tracemalloc.start()
    with pytest.raises(TooLarge):
        unpack(bomb, "gzip", 1 << 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_many_empty_members_are_not_unpacked() -> None:
    with pytest.raises(BadRequest):
        unpack(gzipped(b"") * 1000, "gzip", 1000)


async def test_the_limit_on_bodies_holds_for_packed_ones(make_gateway: Callable[..., Any]) -> None:
    chat = json.dumps({"messages": [{"role": "user", "content": "a" * 500}]}).encode()
    async with make_gateway(max_body_bytes=len(chat)) as gateway:
        headers = {"content-encoding": "gzip"}
        fits = await gateway.client.post("/v1/chat/completions", content=gzipped(chat), headers=headers)
        assert fits.status_code == 200, fits.text
        over = await gateway.client.post("/v1/chat/completions", content=gzipped(chat + b" "), headers=headers)
        assert over.status_code == 413
        assert over.json()["error"]["code"] == "request_too_large"


async def test_a_packed_conversation_is_rendered_like_a_large_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its declared length says nothing of its size: it must not be rendered on the event loop."""
    monkeypatch.setattr(limits, "RENDER_OFF_LOOP_CHARS", 5000)
    seen: list[int] = []
    planner = gateway.app.state.services.planner
    render = type(planner).render

    async def spy(self: Any, conversation: Any) -> Any:
        seen.append(conversation.size)
        return await render(self, conversation)

    monkeypatch.setattr(type(planner), "render", spy)
    body = {"messages": [{"role": "user", "content": "a" * 7_000}]}
    packed = gzipped(json.dumps(body).encode())
    assert len(packed) < 5000
    response = await gateway.client.post("/v1/chat/completions", content=packed, headers={"content-encoding": "gzip"})
    assert response.status_code == 200, response.text
    assert seen
    assert seen[0] > 7_000, "the packed size was taken for its own"
