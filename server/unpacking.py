"""Packed request bodies, never unpacked beyond what a plain body may have: a bomb costs no more than a large body."""

from __future__ import annotations

import zlib
from types import MappingProxyType

from server.errors import BadRequest, TooLarge, UnsupportedMediaType

CODINGS = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


class UnsupportedCoding(UnsupportedMediaType):
    headers = MappingProxyType({"Accept-Encoding": "gzip, deflate"})

    def __init__(self) -> None:
        super().__init__("Request bodies may be packed with gzip or deflate, or sent as they are.")


def too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"The request body is larger than {max_bytes} bytes.")


def unpack(body: bytes, coding: str, max_bytes: int) -> bytes:
    """The body that was packed. Raises TooLarge, and BadRequest for what is broken or cut off."""
    try:
        return _inflate(body, _window(body, coding), max_bytes)
    except zlib.error as exc:
        raise BadRequest(f"The request body is not valid {coding} data: {exc}.") from None


def _window(body: bytes, coding: str) -> int:
    """Some clients send deflate without zlib's header, which is a multiple of 31 that begins with the method 8."""
    headed = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
    return _RAW if coding == "deflate" and not headed else _GZIP_OR_ZLIB


def _inflate(body: bytes, window: int, max_bytes: int) -> bytes:
    unpacker = zlib.decompressobj(window)
    found = unpacker.decompress(body, max_bytes + 1)
    if len(found) > max_bytes:
        raise too_large(max_bytes)
    if not unpacker.eof:
        raise BadRequest("The packed request body is incomplete.")
    if unpacker.unused_data:  # further gzip members included: many empty ones would cost far more than their bytes
        raise BadRequest("Something follows the packed request body.")
    return found
