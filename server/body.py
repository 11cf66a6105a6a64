"""Reading a request's JSON body, with every limit enforced on the bytes themselves.

Decisions:

* The body is parsed as JSON whatever its Content-Type says (``curl -d`` sends a form type), except multipart,
  which is a 415.
* Content-Encoding may be gzip or deflate, unpacked no further than the limit on the body (server/unpacking.py);
  anything else is a 415 that says so in ``Accept-Encoding``.
* Duplicate keys: the last one counts, as in every JSON parser that our clients use.
* Invalid UTF-8, lone surrogates (raw or escaped), NaN, Infinity and numbers beyond a double: 400.
* A UTF-8 byte order mark is skipped.
* Unknown top-level fields are ignored; known fields that we cannot honour are a 400 naming them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any, TypeVar

import msgspec
import orjson
from starlette.types import Message, Receive, Scope

from server import limits
from server.errors import (
    BadRequest,
    ClientDisconnected,
    IncompleteBody,
    RequestTimeout,
    UnsupportedMediaType,
    from_validation_error,
)
from server.json_response import OFF_LOOP_BYTES, off_loop
from server.unpacking import CODINGS, UnsupportedCoding, too_large, unpack

T = TypeVar("T")

_PARSER_BYTES = 16
"""What orjson takes for each byte of a body: 12 to work with and up to 4 as a string."""
_OBJECT_BYTES = 256
"""A small object with one key."""
_ELEMENT_BYTES = 4
"""A value and what divides it from the next, with few exceptions."""


def header(scope: Scope, name: bytes) -> bytes:
    """The first header of that (lower-case) name, b"" where there is none."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return b""


async def read_json(
    scope: Scope,
    receive: Receive,
    *,
    max_bytes: int = limits.MAX_BODY_BYTES,
    seconds: float = limits.BODY_TIMEOUT,
    stall: float = limits.BODY_STALL_TIMEOUT,
) -> dict[str, Any]:
    """The body as a JSON object. Raises the ApiError that fits; never more than ``max_bytes`` are held."""
    coding = _coding(scope)
    body = await read_body(scope, receive, max_bytes=max_bytes, seconds=seconds, stall=stall)
    if coding:
        body = await asyncio.to_thread(unpack, body, coding, max_bytes)
    return await off_loop(len(body) > OFF_LOOP_BYTES, parse_object, body)


def _coding(scope: Scope) -> str:
    """How the body is packed, "" for not at all. Raises UnsupportedMediaType."""
    if header(scope, b"content-type").strip().lower().startswith(b"multipart/"):
        raise UnsupportedMediaType("Send the request body as application/json.")
    codings = [value.strip().lower() for name, value in scope["headers"] if name == b"content-encoding"]
    codings = [coding for coding in codings if coding not in (b"", b"identity")]
    if not codings:
        return ""
    coding = str(codings[0], "latin-1")
    if len(codings) > 1 or coding not in CODINGS:
        raise UnsupportedCoding
    return coding


async def read_body(scope: Scope, receive: Receive, *, max_bytes: int, seconds: float, stall: float) -> bytes:
    """The raw body. ``seconds`` bounds all of it, ``stall`` the silence between two pieces."""
    declared = header(scope, b"content-length")
    if declared.isdigit() and int(declared) > max_bytes:
        await _refuse_declared(scope, receive, int(declared), max_bytes)
    chunks: list[bytes] = []
    size = 0
    deadline = time.monotonic() + seconds
    while True:
        message = await _receive(receive, deadline, stall)
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        size += len(message.get("body", b""))
        if size > max_bytes:
            raise too_large(max_bytes)
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _receive(receive: Receive, deadline: float, stall: float) -> Message:
    """The next piece of a body. A trickle is a timeout (408); a body that stops is incomplete (400)."""
    left = deadline - time.monotonic()
    late = True
    while late:
        seconds = max(0.0, min(left, stall))
        due = time.monotonic() + seconds
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await receive()
        late = time.monotonic() - due > limits.PAUSE_SECONDS
    if left > stall:
        raise IncompleteBody("The request body is incomplete: it stopped arriving.")
    raise RequestTimeout("The request body did not arrive in time.")


async def _refuse_declared(scope: Scope, receive: Receive, declared: int, max_bytes: int) -> None:
    """Raise TooLarge. A body of tolerable size is read away first: closing on a client that still sends would
    reset the connection before it reads our answer."""
    if declared <= limits.MAX_DRAIN_BYTES and not header(scope, b"expect"):
        try:
            async with asyncio.timeout(5):
                while (message := await receive()).get("more_body", False):
                    if message["type"] == "http.disconnect":
                        break
        except TimeoutError:
            pass
    raise too_large(max_bytes)


def parse_object(body: bytes) -> dict[str, Any]:
    """Strict JSON, which must be an object and keep to the element and depth limits."""
    if body.startswith(b"\xef\xbb\xbf"):
        body = body[3:]
    if not body.strip():
        raise BadRequest("The request body is empty; it must be a JSON object.")
    elements = _check_elements(body)
    bytes(_PARSER_BYTES * len(body) + _OBJECT_BYTES * elements)  # raises MemoryError where orjson might crash
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as exc:
        if "Not enough memory" in str(exc):
            raise MemoryError from None
        raise BadRequest(f"The request body is not valid JSON: {exc}.") from None
    if not isinstance(value, dict):
        raise BadRequest("The request body must be a JSON object.")
    if too_deep(value, limits.MAX_JSON_DEPTH):
        raise BadRequest(f"The request body is nested deeper than {limits.MAX_JSON_DEPTH} levels.")
    return value


def _check_elements(body: bytes) -> int:
    """How many values a body holds at most. Refuse bodies whose objects would cost far more than their bytes, before
    any of them is made."""
    if len(body) <= limits.MAX_JSON_ELEMENTS:
        return len(body) // _ELEMENT_BYTES
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * limits.MAX_JSON_STRINGS:
        raise BadRequest(f"The request body holds more than {limits.MAX_JSON_STRINGS} strings.")
    outside = b"".join(bare.split(b'"')[::2])
    elements = sum(map(outside.count, (b",", b"[", b"{")))
    if elements > limits.MAX_JSON_ELEMENTS:
        raise BadRequest(f"The request body holds more than {limits.MAX_JSON_ELEMENTS} values.")
    return elements


def too_deep(value: Any, limit: int) -> bool:
    """Whether containers nest deeper than ``limit``; walks level by level, so it cannot overflow the stack."""
    level: list[Any] = [value]
    for _ in range(limit):
        level = [
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """A parsed body as a msgspec struct; 4.0 is an integer, as JSON Schema has it: languages with one kind of number
    write it so. Raises BadRequest naming the field."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        pass
    try:
        return msgspec.convert({name: _integer(field) for name, field in value.items()}, kind)
    except msgspec.ValidationError as exc:
        raise from_validation_error(exc) from None


def _integer(value: Any) -> Any:
    """Beyond 2**53 nobody knows which integer was written."""
    exact = isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53
    return int(value) if exact else value
