"""The error tree, and the only place where an exception becomes an HTTP status and an OpenAI error object.

Every refusal reads ``{"error": {"message", "type", "param", "code"}}``. 422 is never used. Messages come from
here or from our own validators; an exception that nobody foresaw becomes a 500 with the request id and nothing
else, its traceback stays in the log.

=======  ======================  ================================  =============================
status   type                    code                              openai-python exception
=======  ======================  ================================  =============================
400      invalid_request_error   null, context_length_exceeded,    BadRequestError
                                 invalid_function_parameters,
                                 missing_required_parameter,
                                 unsupported_parameter
401      invalid_request_error   invalid_api_key                   AuthenticationError
403      permission_error        permission_denied                 PermissionDeniedError
404      invalid_request_error   model_not_found, not_found        NotFoundError
405      invalid_request_error   method_not_allowed                APIStatusError
408      timeout_error           request_timeout                   APIStatusError
413      invalid_request_error   request_too_large                 APIStatusError
415      invalid_request_error   unsupported_media_type            APIStatusError
431      invalid_request_error   headers_too_large                 APIStatusError
429      rate_limit_error        rate_limit_exceeded               RateLimitError
500      server_error            internal_error                    InternalServerError
503      server_error            service_unavailable               InternalServerError
=======  ======================  ================================  =============================

429 is for limits of one key (requests, tokens, concurrency); 503 is for the state of the whole service (queue
full, starting, draining, engine away). Both carry Retry-After.
"""

from __future__ import annotations

import errno
import json
import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import orjson
from starlette.exceptions import HTTPException

from engine.client import EngineError, EngineUnavailable
from engine.sampling_params import InvalidParam

MAX_MESSAGE_CHARS = 2000
_MISSING = "Object missing required field "
_CLOSE = MappingProxyType({"Connection": "close"})
"""The rest of the request will not be read, so the connection cannot be used again."""


class ApiError(Exception):
    """An answer that is not a success. Subclasses fix status, type and code; ``message`` is shown to the client."""

    status = 500
    type = "server_error"
    code: str | None = None
    details: Mapping[str, Any] | None = None
    """``error.details`` of Anthropic's shape, by which its clients recognise what they can do something about."""
    headers: Mapping[str, str] = MappingProxyType({})

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code

    def body(self) -> dict[str, Any]:
        return {
            "error": {
                "message": clean(self.message, MAX_MESSAGE_CHARS),
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def json(self) -> bytes:
        return orjson.dumps(self.body())


class BadRequest(ApiError):
    status = 400
    type = "invalid_request_error"


class IncompleteBody(BadRequest):
    headers = _CLOSE


class Unsupported(BadRequest):
    """A field that we know and cannot honour (as opposed to one that nobody knows, which is ignored)."""

    code = "unsupported_parameter"

    def __init__(self, param: str, message: str = "") -> None:
        super().__init__(message or f"'{param}' is not supported by this server.", param=param)


class Unauthorized(ApiError):
    status = 401
    type = "invalid_request_error"
    code = "invalid_api_key"
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class Forbidden(ApiError):
    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(ApiError):
    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model {quote(model)} does not exist or you do not have access to it.", param="model")


class MethodNotAllowed(ApiError):
    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, allow: str) -> None:
        super().__init__(message)
        self.headers = {"Allow": allow} if allow else {}


class RequestTimeout(ApiError):
    status = 408
    type = "timeout_error"
    code = "request_timeout"
    headers = _CLOSE


class TooLarge(ApiError):
    status = 413
    type = "invalid_request_error"
    code = "request_too_large"
    headers = _CLOSE


class HeadersTooLarge(ApiError):
    status = 431
    type = "invalid_request_error"
    code = "headers_too_large"
    headers = _CLOSE


class UnsupportedMediaType(ApiError):
    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class _Retryable(ApiError):
    def __init__(self, message: str, *, retry_after: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.headers = {"Retry-After": str(max(1, math.ceil(retry_after)))}


class RateLimited(_Retryable):
    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class Unavailable(_Retryable):
    status = 503
    type = "server_error"
    code = "service_unavailable"


class Exhausted(Unavailable):
    """This machine has no memory, thread or descriptor left for the request; a later or smaller one may do."""

    def __init__(self) -> None:
        super().__init__("The server has not enough memory for this request right now.", retry_after=5.0)


class InternalError(ApiError):
    status = 500
    type = "server_error"
    code = "internal_error"


class ClientDisconnected(Exception):
    """Nobody is left to read an answer. Never sent; the access log says 499."""


def translate(exc: Exception, request_id: str = "") -> ApiError:
    """Any exception as the answer a client may see. Unknown ones become InternalError: log the original."""
    if isinstance(exc, ApiError):
        return exc
    if isinstance(exc, InvalidParam):
        return BadRequest(str(exc), param=exc.param)
    if isinstance(exc, EngineError):
        return _from_engine(exc)
    if isinstance(exc, msgspec.ValidationError):
        return from_validation_error(exc)
    if isinstance(exc, HTTPException):
        return from_http_exception(exc.status_code, exc.headers)
    if is_exhaustion(exc):
        return Exhausted()
    suffix = f" Request id: {request_id}." if request_id else ""
    return InternalError(f"The server failed to process the request.{suffix}")


_EXHAUSTED = frozenset({errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOBUFS})


def is_exhaustion(exc: Exception) -> bool:
    """Whether nothing is wrong but that the machine, or a limit on this process, has no more to give."""
    if isinstance(exc, OSError):
        return exc.errno in _EXHAUSTED
    no_thread = isinstance(exc, RuntimeError) and str(exc) == "can't start new thread"
    return isinstance(exc, MemoryError) or no_thread


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: RequestTimeout,
    413: TooLarge,
    415: UnsupportedMediaType,
    500: InternalError,
}


def from_status(status: int, message: str, *, code: str | None = None, param: str | None = None) -> ApiError:
    """An error of the class that belongs to ``status``; 4xx that have no class of their own become 400."""
    if status == 429:
        return RateLimited(message, code=code)
    if status in (502, 503, 504):
        return Unavailable(message, code=code)
    kind = _BY_STATUS.get(status, BadRequest if 400 <= status < 500 else InternalError)
    return kind(message, code=code, param=param)


def _from_engine(exc: EngineError) -> ApiError:
    if isinstance(exc, EngineUnavailable):
        return Unavailable(str(exc), retry_after=exc.retry_after)
    return from_status(exc.status, str(exc), code=exc.code, param=exc.param)


def from_http_exception(status: int, headers: Mapping[str, str] | None = None, meant: str = "") -> ApiError:
    """What the router itself raises: unknown path, wrong method. meant: a route that the path comes near."""
    if status == 404:
        hint = f"The route is {meant}: please check the client's base URL." if meant else "Please check the path."
        return NotFound(f"Unknown request URL. {hint}")
    if status == 405:
        return MethodNotAllowed("This method is not allowed for this URL.", (headers or {}).get("Allow", ""))
    return from_status(status, "The request was refused.")


def from_validation_error(exc: msgspec.ValidationError) -> BadRequest:
    """msgspec's ``Expected `int`, got `str` - at `$.n``` as a message with the field's path as ``param``."""
    message, _, location = str(exc).rpartition(" - at `")
    if not message:
        message, location = str(exc), "$`"
    path = location.rstrip("`").removeprefix("$").removeprefix(".").replace("[...]", "")
    text = message.replace("`", "").replace(" | null", "")
    if text.startswith(_MISSING):
        path = ".".join(filter(None, (path, text.removeprefix(_MISSING))))
        return BadRequest(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")
    if not path:
        return BadRequest(f"Invalid request body: {text}.")
    return invalid(path, text)


def invalid(param: str, reason: str, *, code: str | None = None) -> BadRequest:
    """A field whose value is not what it may be; reason: what is expected, without a full stop."""
    return BadRequest(f"Invalid value for '{param}': {reason}.", param=param, code=code)


def quote(value: str, limit: int = 200) -> str:
    """A client's string for an error message: cut, escaped to printable ASCII, in double quotes."""
    return json.dumps(value[:limit]) + ("…" if len(value) > limit else "")


def clean(text: str, limit: int) -> str:
    """Text that is safe in JSON, logs and terminals: no control characters, no lone surrogates, cut to ``limit``."""
    out = "".join(ch if ch.isprintable() or ch in "\n\t" else "\ufffd" for ch in text[:limit])
    return out.encode("utf-8", "replace").decode("utf-8")
